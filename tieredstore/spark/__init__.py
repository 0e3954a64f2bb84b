"""The tier on Spark: what plans and reads lives below, what names pyspark lives here."""

from __future__ import annotations

from tieredstore.spark.tables import register

__all__ = ["register"]
