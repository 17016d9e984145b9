"""Attention maps and result tables."""
