"""Parts of a run folder: seals, locks, shapes of lines, archives."""
