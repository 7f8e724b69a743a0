"""Networks that are not one stack of decoder layers, as lists of components with exact counts."""
