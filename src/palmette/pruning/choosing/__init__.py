"""Which tensors of a model or a file are weights to prune, and what is said about the others."""
