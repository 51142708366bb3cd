"""Triton kernels and CUDA graphs behind training; plain torch does the same elsewhere."""
