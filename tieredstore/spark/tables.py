"""Tables of Spark's own catalogue that read a tier, and a view for each topic.

Spark 4.3 gives the options of `CREATE TABLE … USING tieredstore OPTIONS (…)` to the source once,
when the table is made, and none of them to a later query. But each query gets the schema that the
source returned. So the options are kept in the schema, as metadata of the first column, and each
query is planned with them: it sees what has been committed by then.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from tieredstore.access.reader import TieredReader
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import facts_of, settings_of
from tieredstore.spark.options import CHOOSE_TOPICS, ReadOptions, names_a_tier, plain_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "tieredstore"
KEPT: Final = "tieredstore.options"  # in the metadata of a table's first column
_OPTION: Final = "option."  # Spark's prefix for OPTIONS among its own properties


def options_of_table(properties: Mapping[str, str]) -> dict[str, str] | None:
    """What OPTIONS and LOCATION said, from the properties that Spark gives when a table is made;
    None for a frame instead of a table. InvalidConfigError for a secret: a catalogue keeps it in
    the clear."""
    if properties.get("provider", "").lower() != FORMAT:
        return None
    said = {
        name.lower().removeprefix(_OPTION): text
        for name, text in properties.items()
        if name.lower().startswith(_OPTION)
    }
    path = properties.get("path") or properties.get("location")
    if path:
        place = urlsplit(path)
        said["path"] = unquote(place.path) if place.scheme == "file" else path
    refuse_secrets(said)
    return said


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise InvalidConfigError if the options of a table have a secret."""
    secrets = {
        plain_name(name) for name, spec in settings_of(StoreConfig).items() if facts_of(spec).secret
    }
    for name in options:
        if plain_name(name) in secrets:
            raise InvalidConfigError(
                f"option {name}: a table keeps its options in the clear; leave it to the file that"
                f" the option config names, or to {StoreConfig.ENV_PREFIX}{name.upper()}"
            )


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, with its options in it."""
    from pyspark.sql.types import StructField, StructType

    first = schema.fields[0]
    kept = StructField(first.name, first.dataType, first.nullable, {KEPT: json.dumps({**options})})
    return StructType([kept, *schema.fields[1:]])


def options_of_read(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a query: its own, which override those of the table that it reads.

    If its own options name a tier, only they count, so that two tiers are not mixed.
    """
    said = {**given}
    if names_a_tier(said):
        return said
    kept = kept_options(schema)
    if kept is None and not said:
        raise InvalidConfigError(
            "which tier? Name it with the option config. A table that was created with a list of"
            " columns has lost its options: create it without one, and with the option columns"
        )
    own = set(map(plain_name, said))
    others = {name: text for name, text in (kept or {}).items() if plain_name(name) not in own}
    return {**others, **said}


def check_write_names_tier(given: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for a write that does not name its tier.

    The options that a table keeps cannot be used here. `INSERT INTO a SELECT * FROM b` passes the
    columns of b if those of a are the same, and Parquet files made from a table have its columns
    too.
    """
    if not names_a_tier(given):
        raise InvalidConfigError(
            "which tier? A write names it with the option config, also one into a table:"
            " INSERT INTO t WITH (config = '/data/tier.toml')"
        )


def kept_options(schema: StructType) -> dict[str, str] | None:
    """The options in the schema of a table; None if there are none."""
    for column in schema.fields:
        text = column.metadata.get(KEPT)
        if not isinstance(text, str):
            continue
        try:
            kept = json.loads(text)
        except (ValueError, RecursionError):
            kept = None
        if not isinstance(kept, dict) or not all(isinstance(each, str) for each in kept.values()):
            raise InvalidConfigError(f"column {column.name}: the options of the table are damaged")
        return kept
    return None


def register(
    spark: SparkSession,
    config: str | os.PathLike[str],
    *,
    table: str = "tier",
    prefix: str = "",
    **options: str,
) -> list[str]:
    """Make a table of all messages, and for each topic a temporary view with the topic's name.

    Each query of them is planned anew and sees what has been committed. Run this again for topics
    that have been added since. `options` are those of a read, such as `columns` or `topic_pattern`.
    Returns the names of the views: `prefix`, and then the topic's name.

    Each view reads a table of its own beside `table`. One table for all views would not work: Spark
    plans a table once for a whole query, so a query of two topics would read one of them twice.

    Raises InvalidConfigError if `table` exists and does not read a tier, or if two views, or a view
    and the table, have the same name to Spark.
    """
    from tieredstore.spark.reading import spark_schema

    said = {**options, "config": os.path.abspath(config)}
    read = ReadOptions.parse(said)
    with TieredReader.open(read.config) as tier:
        topics = sorted({key.topic for key in tier.queues() if read.selection.wants(key)})
    is_exact = spark.conf.get("spark.sql.caseSensitive") == "true"
    taken = {_folded(table.rpartition(".")[2].strip("`"), is_exact): f"the table {table}"}
    for topic in topics:
        name = _folded(prefix + topic, is_exact)
        if name in taken:
            raise InvalidConfigError(
                f"view {prefix}{topic}: its name is that of {taken[name]}; choose another table or"
                " prefix, or leave topics out with the option topics"
            )
        taken[name] = f"the view {prefix}{topic}"
    refuse_secrets(said)
    schema = spark_schema(read.scan.columns)
    _make_table(spark, table, with_options(schema, said), "all messages")
    others = {name: text for name, text in said.items() if plain_name(name) not in CHOOSE_TOPICS}
    for topic in topics:
        name = _table_of_topic(table, topic)
        only = with_options(schema, {**others, **_only(topic)})
        _make_table(spark, name, only, f"messages of the topic {topic}")
        view = _quoted(prefix + topic)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {view} AS SELECT * FROM {name}")
    return [prefix + topic for topic in topics]


def _only(topic: str) -> dict[str, str]:
    """The option that chooses this topic. A list would be parted at commas, and lose blanks."""
    if "," in topic or topic != topic.strip():
        return {"topic_pattern": re.escape(topic)}
    return {"topics": topic}


def _make_table(spark: SparkSession, name: str, schema: StructType, what: str) -> None:
    """Make a table that reads a tier. It replaces one that was made before."""
    if spark.catalog.tableExists(name):
        if kept_options(spark.table(name).schema) is None:
            raise InvalidConfigError(f"table {name}: there is one that reads no tier")
        spark.sql(f"DROP TABLE {name}")
    spark.catalog.createTable(name, None, FORMAT, schema, what)


def _table_of_topic(table: str, topic: str) -> str:
    """Has a digest instead of the topic: Spark takes only letters, digits and _ in table names."""
    behind = f"_{sha256(topic.encode()).hexdigest()[:16]}"
    return f"{table[:-1]}{behind}`" if table.endswith("`") else table + behind


def _folded(name: str, is_exact: bool) -> str:
    return name if is_exact else name.lower()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
