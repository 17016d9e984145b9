"""Metrics, reports of runs, and probing."""
