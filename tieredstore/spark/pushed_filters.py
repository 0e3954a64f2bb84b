"""Spark's filters made into a narrower selection.

What lives here: `narrowed`. Spark still looks at every row with every filter: a filter that is not
known here costs speed and never an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tieredstore.jobs.reading.selection import Selection

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def narrowed(selection: Selection, filters: Iterable[Filter]) -> Selection:
    """What is selected and passes all filters, or a bit more."""
    for each in filters:
        selection = _narrowed_by(selection, each)
    return selection


def _narrowed_by(selection: Selection, condition: Filter) -> Selection:
    column: Sequence[str] = getattr(condition, "attribute", ())
    if len(column) != 1:
        return selection
    if isinstance(condition, (EqualTo, EqualNullSafe, In)):
        values = condition.value if isinstance(condition, In) else (condition.value,)
        return _one_of(selection, column[0], [value for value in values if value is not None])
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)):
        return _within(selection, column[0], condition)
    return selection


def _one_of(selection: Selection, column: str, values: list[Any]) -> Selection:
    if column in ("topic", "key", "unique_key"):
        texts = frozenset(value for value in values if isinstance(value, str))
        if len(texts) < len(set(values)) or not texts:
            return selection
        if column == "topic":
            return selection.with_topics(texts)
        return selection.with_keys(texts) if column == "key" else selection.with_unique_keys(texts)
    if not values:
        return selection
    if column == "store_time":
        times = [_micros(value) for value in values]
        if any(time is None for time in times):
            return selection
        known = [time for time in times if time is not None]
        return selection.with_times(min(known) // 1000, max(known) // 1000 + 1)
    if not all(type(value) is int for value in values):
        return selection
    if column == "queue_id":
        return selection.with_queue_ids(frozenset(values))
    if column == "queue_offset":
        return selection.with_offsets(min(values), max(values) + 1)
    return selection


def _within(selection: Selection, column: str, condition: Any) -> Selection:
    is_lower = isinstance(condition, (GreaterThan, GreaterThanOrEqual))
    excludes = isinstance(condition, (GreaterThan, LessThanOrEqual))  # as a half open bound
    if column == "queue_offset" and type(condition.value) is int:
        bound = condition.value + excludes
        return selection.with_offsets(bound) if is_lower else selection.with_offsets(end=bound)
    if column == "store_time":
        micros = _micros(condition.value)
        if micros is None:
            return selection
        # Store times are whole milliseconds.
        bound = micros // 1000 + 1 if excludes else -(-micros // 1000)
        return selection.with_times(bound) if is_lower else selection.with_times(end=bound)
    return selection


def _micros(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.astimezone(UTC)
    return (moment - _EPOCH) // _MICROSECOND
