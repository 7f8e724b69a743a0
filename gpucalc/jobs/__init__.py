"""A question completed: the cells of a row and the defaults around it, as the columns of an estimate."""
