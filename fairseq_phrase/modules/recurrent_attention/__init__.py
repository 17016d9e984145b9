"""What recurrent decoders attend with: scores, windows, coverage, cells. torch only."""
