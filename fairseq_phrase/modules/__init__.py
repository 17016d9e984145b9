"""Attention layers and position encodings: torch only, no fairseq."""
