"""fairseq models: every registered encoder as a translation model, one file for each method."""
