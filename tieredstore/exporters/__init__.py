"""Exports metrics to monitoring systems: `prometheus` and `otel`, each with its own dependency."""
