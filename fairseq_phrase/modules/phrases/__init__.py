"""Attention within phrases."""
