"""From numbers to masks."""
