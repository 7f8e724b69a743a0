"""Launch settings read back into rows; nothing that is read is executed."""
