"""Relative positions in the sentence and in the tree: the structural-position Transformer."""
