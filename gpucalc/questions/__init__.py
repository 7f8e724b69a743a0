"""Questions, a file an answer: what a command or a call of the Python interface asks."""
