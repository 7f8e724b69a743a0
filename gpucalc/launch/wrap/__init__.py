"""Scripts that hold a launch: one module a scheduler, each of which exports WRAPPER."""
