"""Estimates: the only modules that say which formulas are evaluated, and in what order."""
