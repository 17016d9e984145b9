"""Data and trees, to look at and to check."""
