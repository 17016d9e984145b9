"""Trained models for people: raw text in, text out; bundles and other libraries' formats."""
