"""Files: mapped into memory, of one size each, and in a row."""
