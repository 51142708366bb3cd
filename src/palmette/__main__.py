"""`python -m palmette` is the command line, installed or not."""

from palmette.cli import main

if __name__ == "__main__":
    main()
