"""A design space searched cell by cell, over workers, into a store that survives interrupts."""
