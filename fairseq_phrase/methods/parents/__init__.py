"""The parent-scaled Transformer."""
