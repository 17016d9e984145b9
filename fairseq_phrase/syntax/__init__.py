"""What a parse is, and pure functions of it: NumPy only."""
