"""Remove dead neurons and channels for good."""
