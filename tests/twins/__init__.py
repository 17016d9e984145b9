"""Plain twins of fast code: loops over nodes and literal equations."""
