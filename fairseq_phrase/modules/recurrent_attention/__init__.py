"""Attention of recurrent decoders: scores, windows, coverage, cells. torch only."""
