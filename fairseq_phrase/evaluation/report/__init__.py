"""From runs to tables, significance tests, plots and a page."""
