"""Model state as named tensors in flat rows, with its arithmetic and its encoding."""
