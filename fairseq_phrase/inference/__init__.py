"""Inference from raw text with trained models, bundles, and exports to other libraries' formats."""
