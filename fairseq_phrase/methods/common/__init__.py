"""What several methods need: parses and trees as tensors, projections, attention with biases."""
