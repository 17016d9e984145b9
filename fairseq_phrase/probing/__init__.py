"""What an encoder's states tell about a sentence: probing tasks, classifiers and their tables."""
