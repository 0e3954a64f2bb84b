"""Metrics for those who watch: `prometheus` and `otel`, each with its own optional dependency."""
