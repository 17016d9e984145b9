"""Transformer-XL: memory of earlier segments."""
