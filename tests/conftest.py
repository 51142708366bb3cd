import os

# GNU readline, which pytest imports, sets these for workers of pytest-xdist, which have no terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)
