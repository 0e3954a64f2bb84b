"""A broker's tier in a bucket as one sequence of objects: every round is an entry of it."""
