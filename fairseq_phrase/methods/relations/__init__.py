"""The relation-biased Transformer: biases and vectors of the relations between words."""
