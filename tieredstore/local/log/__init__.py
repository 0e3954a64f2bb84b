"""The log: every message of the store, appended, flushed, and walked again."""
