"""`python -m palmette` is the command line, installed or not."""

import sys

if __name__ == "__main__":
    try:
        from palmette.cli import main

        main()
    except KeyboardInterrupt:  # before the command line is there to say so
        sys.exit(130)
