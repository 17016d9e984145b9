"""Losses that are added to a task's: trees from attention, coverage."""
