"""Choice of the tensors of a model or a file that are pruned, and sentences about the others."""
