"""How tests name a tier to Spark: the settings of a StoreConfig as options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieredstore.model.config import StoreConfig
from tieredstore.model.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def options_of(config: StoreConfig) -> dict[str, str]:
    """All settings that are not the default, as texts."""
    plain = StoreConfig()
    return {
        name: str(getattr(config, name))
        for name in settings_of(config)
        if getattr(config, name) != getattr(plain, name) and name != "metadata"
    }


def load(spark: SparkSession, config: StoreConfig, **options: Any) -> DataFrame:
    named = {name: str(value) for name, value in options.items()}
    return spark.read.format("tieredstore").options(**options_of(config), **named).load()
