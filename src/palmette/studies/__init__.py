"""Experiments on disk."""
