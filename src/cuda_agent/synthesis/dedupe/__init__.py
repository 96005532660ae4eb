"""What makes two tasks the same: similar sources, equal graphs; near-duplicates, splits and caps."""
