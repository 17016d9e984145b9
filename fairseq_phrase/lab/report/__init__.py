"""Reports on runs: tables, significance tests, plots and a page."""
