"""Scores of translations, labels and formal outputs, and tests of their differences."""
