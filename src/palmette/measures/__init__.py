"""Numbers about weights. Tensors in, tensors out; no model, no file, no training."""
