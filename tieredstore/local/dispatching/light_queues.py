"""Light message queues: which further queues a record belongs to, and where in them.

What lives here: reading that from a record's properties. A put of ours refuses a message with
either of them; what Java gave is built anew from the log like any other queue.

    INNER_MULTI_DISPATCH      %LMQ%a,%LMQ%b     the further queues; each has the number 0
    INNER_MULTI_QUEUE_OFFSET  7,0               the record's place in each, in the same order

Java writes the second of them when it puts the message. A client of it can send any text under
both names, so nothing here raises: what cannot be meant is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from tieredstore.codec.message import MESSAGE_BYTES_MIN
from tieredstore.codec.properties import LIGHT_OFFSETS, LIGHT_QUEUES
from tieredstore.local.dispatching.dispatch import DispatchRun
from tieredstore.local.queues.topic_directories import is_topic
from tieredstore.local.records.record_columns import RecordColumns

LIGHT_PREFIX: Final = "%LMQ%"
LIGHT_QUEUE_ID: Final = 0

_NEVER_LIGHT: Final = ("%RETRY%", "rmq_sys_")
_DELAYED: Final = "SCHEDULE_TOPIC_XXXX"
_OFFSET_DIGITS_MAX: Final = 18


def light_places(
    topic: str, properties: Mapping[str, str], *, log_offset: int
) -> list[tuple[str, int]]:
    """The light queues that a record of this topic belongs to, and its queue offset in each.

    A queue that is named twice has the record once, as in Java. No queue can have had more
    messages than the log has room for below this one: a greater offset is none.
    """
    names = properties.get(LIGHT_QUEUES, "").split(",")
    offsets = properties.get(LIGHT_OFFSETS, "").split(",")
    if len(names) != len(offsets) or topic.startswith(_NEVER_LIGHT) or topic == _DELAYED:
        return []
    places: dict[str, int] = {}
    for name, text in zip(names, offsets, strict=True):
        offset = _queue_offset(text)
        if offset is None or offset * MESSAGE_BYTES_MIN > log_offset:
            continue
        if name.startswith(LIGHT_PREFIX) and is_topic(name):
            places.setdefault(name, offset)
    return list(places.items())


def add_light_queues(run: DispatchRun, columns: RecordColumns) -> None:
    """Behind each message that belongs to light queues add a row without keys for each of them.

    The rows stay in the order of the log: a queue may get messages that have its name as their
    topic, too.
    """
    places: dict[int, list[tuple[str, int]]] = {}
    for row in columns.rows_with(LIGHT_QUEUES.encode("ascii")):
        if run.in_queue[row]:
            at = run.log_offsets[row]
            places[row] = light_places(run.topics[row], columns.properties(row), log_offset=at)
    if not any(places.values()):
        return
    sources: list[int] = []
    added: dict[int, tuple[str, int]] = {}
    for row in range(len(run)):
        sources.append(row)
        for place in places.get(row, ()):
            added[len(sources)] = place
            sources.append(row)
    for field in fields(run):
        column = getattr(run, field.name)
        setattr(run, field.name, [column[row] for row in sources])
    for row, (topic, queue_offset) in added.items():
        run.topics[row] = topic
        run.queue_ids[row] = LIGHT_QUEUE_ID
        run.queue_offsets[row] = queue_offset
        run.unique_keys[row] = run.keys[row] = None


def _queue_offset(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > _OFFSET_DIGITS_MAX:
        return None
    return int(text)
