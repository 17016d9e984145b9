"""Parses on disk, beside fairseq's own binarized text."""
