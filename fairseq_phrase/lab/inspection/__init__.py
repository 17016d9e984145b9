"""Data directories, read and verified: their text, their statistics, every record of their parses."""
