"""What an encoder's states encode about a sentence: probing tasks, classifiers and their tables."""
