"""Uploading: what moves the messages of a broker's store into the tier."""
