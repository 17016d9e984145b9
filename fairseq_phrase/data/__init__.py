"""A corpus on its way to batches: subwords, preprocessing, the parse on disk, batches."""
