"""Statements about clusters, checked against the database and the model."""
