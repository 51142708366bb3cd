"""Budgets, saliencies, masks and the `Pruner` that combines them."""
