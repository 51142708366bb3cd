"""From masks to smaller and faster models."""
