"""From a corpus to a data directory: parsing, segmentation, binarized text."""
