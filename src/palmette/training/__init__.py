"""From masks to trained weights."""
