"""Records: from messages to the bytes of the log, and back from bytes that may be damaged."""
