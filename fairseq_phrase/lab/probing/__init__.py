"""Probing of an encoder's states for properties of the sentence: tasks, classifiers and tables."""
