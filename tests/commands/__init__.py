"""Tests that train models or parsers, or start commands."""
