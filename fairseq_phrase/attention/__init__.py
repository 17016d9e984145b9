"""Attention maps of trained models, computed and drawn."""
