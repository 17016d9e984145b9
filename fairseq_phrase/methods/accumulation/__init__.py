"""The tree Transformer: hierarchical accumulation over constituents."""
