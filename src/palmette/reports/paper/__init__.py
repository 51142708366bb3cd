"""The figures and tables of the paper, drawn from runs."""
