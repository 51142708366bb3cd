"""Trainers of a run: a fleet of networks in step, or the user's functions."""
