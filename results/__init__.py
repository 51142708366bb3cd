"""Studies on record, and the pages about them: `python -m results.make`."""
