"""What a run folder is made of: seals, locks, shapes of lines, archives."""
