"""One protocol, four kinds of weights: in memory, on a GPU, in a file, sharded over processes."""
