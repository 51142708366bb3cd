"""Sources of weights behind one protocol: in memory, on a GPU, in a file, sharded over processes."""
