"""Trained models: their identity, loading, averaging, and beginning from them."""
