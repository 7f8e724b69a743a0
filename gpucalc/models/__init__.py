"""Models: their shape, parameter counts, presets, and the files that describe them."""
