"""Attention maps of trained models."""
