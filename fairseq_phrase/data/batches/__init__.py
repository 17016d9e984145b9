"""Parses in batches: fairseq's datasets and collaters, and raw lines at inference."""
