"""Weights in files: open any format, report how compressible it is, cut it."""
