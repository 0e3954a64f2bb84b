"""The tier on Spark. Only this package imports pyspark; planning and reading live in `jobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieredstore.spark.tables import register

if TYPE_CHECKING:
    from tieredstore.spark.sink import load

__all__ = ["load", "register"]


def __getattr__(name: str) -> Any:
    """Import `load` when it is used: it needs pyspark, and this package does not."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tieredstore.model.extras import brought_by

    with brought_by("spark"):
        from tieredstore.spark.sink import load

    return load
