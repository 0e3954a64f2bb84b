"""Queues put together byte by byte, for tests of what nobody would append."""

from __future__ import annotations

import hashlib

from tests.flat.tiers import OneQueue
from tieredstore.codec.queue_unit import UNIT_BYTES, encode_unit
from tieredstore.driver.metadata import Put
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import SegmentRecord, SegmentType

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE


def crafted(pieces: list[bytes], places: list[tuple[int, int]], *, first: int = 0) -> OneQueue:
    """A tier whose log segments hold these bytes and whose units name these places and sizes."""
    tier = OneQueue()
    base = 0
    rows = []
    for piece in pieces:
        tier.provider.held[LOG, base] = bytearray(piece)
        rows.append(
            SegmentRecord(path="broker-a/TopicTest/0", type=LOG, base_offset=base, size=len(piece))
        )
        base += len(piece)
    units = b"".join(
        encode_unit(log_offset=place, message_bytes=size, tags_code=number)
        for number, (place, size) in enumerate(places)
    )
    tier.provider.held[QUEUE, first * UNIT_BYTES] = bytearray(units)
    rows.append(
        SegmentRecord(
            path="broker-a/TopicTest/0",
            type=QUEUE,
            base_offset=first * UNIT_BYTES,
            size=len(units),
        )
    )
    tier.metadata.apply([Put(row) for row in rows])
    return tier


def laid_out(records: list[bytes]) -> list[tuple[int, int]]:
    places, at = [], 0
    for record in records:
        places.append((at, len(record)))
        at += len(record)
    return places


def digests(run: MessageRun) -> list[str]:
    return [hashlib.sha256(run.record(row)).hexdigest() for row in range(len(run))]


def same_but_for_log_offset(run: MessageRun, records: list[bytes]) -> bool:
    return [
        bytes(run.record(row)[:28]) + bytes(run.record(row)[36:]) for row in range(len(run))
    ] == [record[:28] + record[36:] for record in records]
