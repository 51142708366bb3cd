"""Output of commands that train: the live table, its observer, and the plan of a dry run."""
