"""Predictions held against measurements, kind by kind."""
