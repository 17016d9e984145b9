"""Positions in the sentence and in the dependency tree."""
