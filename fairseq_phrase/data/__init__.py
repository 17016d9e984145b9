"""Parses next to fairseq's data: how they are made, stored, read and batched."""
