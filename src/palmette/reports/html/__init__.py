"""The interactive HTML report."""
