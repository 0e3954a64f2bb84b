"""Queues: where the messages of each queue are in the log, and reads by queue offset."""
