"""Launch settings read back: one module a source, whose file name is its name.

A module exports SOURCE. Names that begin with an underscore, and folders, are helpers, not sources.
"""
