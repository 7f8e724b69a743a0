"""A user's own measurements turned into an overlay of the hardware database."""
