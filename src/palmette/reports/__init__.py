"""Tables, figures and pages from the records of runs."""
