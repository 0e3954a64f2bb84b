"""Slices of queues and their messages as Arrow tables: what jobs and Spark read with."""
