import os
import signal

# GNU readline, which pytest imports, sets these for workers of pytest-xdist, which have no terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# Shells without job control let what they run in the background ignore Ctrl-C, and tests send it to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
