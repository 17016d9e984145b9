"""Attention over constituency trees with hierarchical accumulation."""
