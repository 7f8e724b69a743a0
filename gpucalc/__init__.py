"""gpucalc: which parallel layout fits a GPU cluster, how fast it is, and why."""

__version__ = "0.1.0"
