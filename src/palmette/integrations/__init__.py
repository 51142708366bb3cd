"""Other packages that palmette works with; each is imported when it is asked for."""
