"""Parses of sentences, and pure functions of them. Only NumPy is needed."""
