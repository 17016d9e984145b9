"""Copying of source words."""
