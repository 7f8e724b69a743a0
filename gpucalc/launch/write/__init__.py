"""A layout written as the settings of the frameworks that run it: one module a target."""
