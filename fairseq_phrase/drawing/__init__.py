"""Trees, attention and figures, drawn into files and on the terminal."""
