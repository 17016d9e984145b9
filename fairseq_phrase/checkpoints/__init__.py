"""Trained models: identity, loading, averaging, and training that starts from them."""
