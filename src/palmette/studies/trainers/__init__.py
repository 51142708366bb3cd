"""Who trains a run: a fleet of networks in step, or the functions of the user."""
