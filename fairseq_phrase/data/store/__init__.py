"""Parses on disk, next to fairseq's binarized text."""
