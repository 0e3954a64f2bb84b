"""What makes `spark.read.format("tieredstore")` work: Spark looks for modules named like this one.

Nothing else lives here; the source is `tieredstore.spark.source`.
"""

from __future__ import annotations

from tieredstore.spark.source import TierDataSource as DefaultSource

__all__ = ["DefaultSource"]
