"""Keys: the index files, filled and cut back, and messages found by key."""
