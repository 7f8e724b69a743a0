"""The model: pure functions from named quantities to one quantity, scalar or array, each with units and citation."""
