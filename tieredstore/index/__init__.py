"""The key index of the tier: files that are filled, compacted, uploaded and searched."""
