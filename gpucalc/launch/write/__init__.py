"""Launch settings of each framework and engine: one module a target, whose file name is its name.

A module exports TARGET. Names that begin with an underscore are helpers, not targets.
"""
