"""Records that are checked together: each read answers as if every record were checked alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local.store_audit import opened
from tieredstore.codec.queue_unit import decode_units, encode_units, unpack_units
from tieredstore.codec.record import tags_code
from tieredstore.codec.tags_filter import TagsFilter
from tieredstore.local import queue_page, queue_reader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.messages import LazyMessages, Message, joined_records
from tieredstore.model.property_text import split_property_text, value_in
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import GetStatus, Host, QueueKey
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 150
FILE_BYTES = 16_384
IPV6 = Host(bytes(range(16)), 10_911)
TAGS = ("often", "sometimes", "", "Größe", "标签")

Change = tuple[str, int, int, bytes]
"""Of the log or of the queue: which message, where in its record or unit, what is written there."""


def some(number: int, topic: str = TOPIC, queue_id: int = 0) -> Message:
    dice = random.Random(number)
    tag = dice.choices(TAGS, (50, 10, 3, 5, 5))[0]
    properties = {"KEYS": f"k-{number}", "TAGS": tag, "WAIT": "true"}
    if dice.random() < 0.2:
        properties = {"TAGS": tag} if tag else {}
    size = dice.choice((0, 1, 10, 100, 100, 900, 3_500))
    if number == COUNT // 2:
        properties, size = {}, 0
    return a_message(number, topic=topic, queue_id=queue_id, body_bytes=size, properties=properties)


def alone(number: int) -> list[Message]:
    return [some(number)]


def among_others(number: int) -> list[Message]:
    return [some(number), *(some(number, queue_id=other) for other in range(1, 1 + number % 3))]


def of_ipv6(number: int) -> list[Message]:
    one = some(number)
    if number % 3:
        one = replace(one, born_host=IPV6)
    return [replace(one, store_host=IPV6) if number % 5 else one]


def of_a_long_topic(number: int) -> list[Message]:
    return [some(number, "Long" * 50)]


def delayed(number: int) -> list[Message]:
    one = some(number, SCHEDULE_TOPIC)
    return [replace(one, properties={**one.properties, "DELAY": str(1 + number % 3)})]


class Kept:
    """A store, and the one of its queues that is read."""

    def __init__(self, root: Path, made: Callable[[int], list[Message]], **config: object) -> None:
        self.store = filled(root, made, **config)
        self.key = QueueKey(made(0)[0].topic, 0)
        parts = self.store._loaded()
        parts.dispatch.drain()
        self.log = parts.log
        queue = parts.queues.queue(*self.key)
        assert queue is not None
        assert queue.max_offset == COUNT
        self.queue = queue
        self.units = [queue.unit(offset) for offset in range(COUNT)]

    def answer(self, offset: int, *, singly: bool = False, **asked: Any) -> tuple[object, ...]:
        """The result of a read, or its error."""
        with pytest.MonkeyPatch.context() as patch:
            if singly:
                patch.setattr(queue_reader, "read_page", lambda *_: None)
            try:
                got = self.store.get_message(*self.key, offset, **asked)
            except SegmentCorruptError as error:
                return str(error), error.position
        return (
            *(got.status, got.next_offset, got.min_offset, got.max_offset),
            *(list(got.messages), got.records()),
        )

    def write(self, change: Change) -> bytes:
        """Make the change; return the bytes that it replaced."""
        where, row, at, data = change
        unit = self.units[row]
        if where == "log":
            files, begin, size = self.log.queue, unit.log_offset, unit.message_bytes
        else:
            files, begin, size = self.queue._files, row * 20, 20
        begin += at % size
        file = files.find(begin)
        assert file is not None
        begin -= file.start_offset
        data = data[: file.wrote - begin]
        before = file.read(begin, len(data))
        file.write_at(begin, data)
        return before


def filled(root: Path, made: Callable[[int], list[Message]], **config: object) -> LocalMessageStore:
    sizes = {"commit_log_file_bytes": FILE_BYTES, "queue_file_bytes": 2_000}
    store = opened(root, **{**sizes, "index_enabled": False, **config})
    for number in range(COUNT):
        assert all(result.stored for result in store.put_messages(made(number)))
    return store


KINDS = (alone, among_others, of_ipv6, of_a_long_topic, delayed)


@pytest.fixture(scope="module", params=KINDS, ids=lambda made: made.__name__)
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    root = tmp_path_factory.mktemp("pages")
    with_crc = request.param is among_others
    config = {"memory_bytes_max": 30_000, "property_crc_enabled": with_crc}
    kept = Kept(root / "store", request.param, **config)
    yield kept
    kept.store.shutdown()


CHANGES = st.tuples(
    st.sampled_from(["log", "log", "queue"]),
    st.integers(0, COUNT - 1),
    st.one_of(st.integers(0, 130), st.integers(-40, -1)),
    st.one_of(st.binary(min_size=1, max_size=8), st.just(bytes(20))),
)
FILTERS = st.sampled_from([None, "often", "sometimes || 标签", "*"])


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(CHANGES, max_size=2),
    offset=st.integers(0, COUNT - 1),
    count_max=st.sampled_from([1, 2, 5, 32, 100]),
    bytes_max=st.sampled_from([1, 2_000, 10_000, 1 << 20]),
    tags=FILTERS,
    page_cache_bytes=st.sampled_from([0, 10_000, 1 << 40]),
)
def test_a_page_is_what_its_records_are_one_by_one(
    kept: Kept,
    changes: list[Change],
    offset: int,
    count_max: int,
    bytes_max: int,
    tags: str | None,
    page_cache_bytes: int,
) -> None:
    wanted = None if tags is None else TagsFilter(tags)
    answers = []
    for singly in (False, True):
        written = [(change, kept.write(change)) for change in changes]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_reader, "_page_cache_bytes", lambda: page_cache_bytes)
            asked = {"count_max": count_max, "bytes_max": bytes_max, "message_filter": wanted}
            answers.append(kept.answer(offset, singly=singly, **asked))
        for row, unit in enumerate(kept.units):  # a read may have mended one
            if kept.queue.unit(row) != unit:
                kept.queue.mend(row, unit)
        for (where, row, at, _), before in reversed(written):
            if where == "log":
                kept.write((where, row, at, before))
    assert answers[0] == answers[1]


def test_each_byte_of_a_record_counts(kept: Kept) -> None:
    """Also those that no checksum covers."""
    row = min(range(5, COUNT - 5), key=lambda row: kept.units[row].message_bytes)
    changes = [(at, bits) for at in range(kept.units[row].message_bytes) for bits in (1, 0x30)]
    for at, bits in changes:
        before = kept.write(("log", row, at, b"\0"))
        answers = []
        for singly in (False, True):
            kept.write(("log", row, at, bytes([before[0] ^ bits])))
            answers.append(kept.answer(row - 1, singly=singly, count_max=2))
            kept.queue.mend(row, kept.units[row])
        assert answers[0] == answers[1], (at, bits)
        kept.write(("log", row, at, before))


def test_sound_records_of_a_page_are_made_only_when_somebody_looks(kept: Kept) -> None:
    got = kept.store.get_message(*kept.key, 5, count_max=9)
    assert got.status is GetStatus.FOUND
    records = got.records()
    assert isinstance(got.messages, LazyMessages)
    assert records == joined_records(list(got.messages))
    assert [one.queue_offset for one in got.messages] == list(range(5, 5 + len(got.messages)))
    again = kept.store.get_message(*kept.key, 5, count_max=9)
    assert again == got


def test_what_expires_while_it_is_read_is_told_as_before(tmp_path: Path) -> None:
    kept = Kept(tmp_path, among_others)
    kept.log.queue.delete_before(3 * FILE_BYTES)
    first = next(row for row, unit in enumerate(kept.units) if unit.log_offset >= 3 * FILE_BYTES)
    assert 3 < first < COUNT - 40
    for offset in (first - 3, first - 1, first, first + 1):
        assert kept.answer(offset) == kept.answer(offset, singly=True)
    assert kept.answer(0)[:2] == (GetStatus.MESSAGE_WAS_REMOVING, first)


def test_a_lost_part_of_the_log_is_not_served(tmp_path: Path) -> None:
    kept = Kept(tmp_path, alone)
    lost = kept.units[7]
    kept.log.lost.settle(
        [(lost.log_offset, lost.log_offset + lost.message_bytes)],
        log_min=0,
        log_end=kept.log.max_offset,
    )
    got = kept.store.get_message(*kept.key, 3)
    assert (len(got.messages), got.next_offset) == (4, 7)
    got = kept.store.get_message(*kept.key, 7)
    assert (got.status, got.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 8)


@pytest.mark.parametrize("count", [0, 1, 32, 64, 65, 1_000])
def test_units_as_tuples_are_those_of_the_columns(count: int) -> None:
    dice = random.Random(count)
    data = encode_units(
        log_offsets=[dice.randrange(-(2**63), 2**63) for _ in range(count)],
        message_bytes=[dice.randrange(-(2**31), 2**31) for _ in range(count)],
        tags_codes=[dice.randrange(-(2**63), 2**63) for _ in range(count)],
    )
    units = decode_units(data)
    assert unpack_units(data) == tuple(
        tuple(column.tolist())
        for column in (units.log_offsets, units.message_bytes, units.tags_codes)
    )


TEXTS = st.lists(
    st.sampled_from(["TAGS", "T", "\1", "\2", "\2TAGS\1a", "\2TAGS\1b\2", "x\2", "ü"])
).map("".join)


@given(heads=st.lists(TEXTS, min_size=1, max_size=4), tail=TEXTS, other=st.booleans())
def test_tags_of_texts_that_end_alike_are_those_of_each(
    heads: list[str], tail: str, other: bool
) -> None:
    texts = [head + tail for head in heads]
    codes = [tags_code(split_property_text(text).get("TAGS")) for text in texts]
    raw = [text.encode() for text in texts]
    assert queue_page._have_tags(raw, tuple(codes))
    assert not queue_page._have_tags(raw, (*codes[:-1], codes[-1] + 1))
    if other and len(set(codes)) > 1:
        assert not queue_page._have_tags(raw, (codes[0],) * len(codes))


@given(
    text=st.lists(st.sampled_from(["TAGS", "T", "\1", "\2", "TAGS\1", "\2TAGS\1a", "x\2"])).map(
        "".join
    ),
    name=st.sampled_from(["TAGS", "T"]),
)
def test_a_value_in_a_text_is_that_among_all(text: str, name: str) -> None:
    assert value_in(text, name) == split_property_text(text).get(name)
