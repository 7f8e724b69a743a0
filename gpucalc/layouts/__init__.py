"""Parallel layouts: their space, and the label that names one."""
