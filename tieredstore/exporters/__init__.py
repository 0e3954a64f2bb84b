"""Metrics for monitoring systems: `prometheus` and `otel`, each with its own dependency."""
