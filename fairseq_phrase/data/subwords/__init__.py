"""Raw lines to words, subwords and trees, in the same way for a corpus and for new text."""
