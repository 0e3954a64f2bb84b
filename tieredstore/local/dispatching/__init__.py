"""Dispatching: from the log into queues and index, at once or when a store opens."""
