"""A filter that names its tags codes is answered as one that is asked for each, only faster."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.queue_unit import decode_units, encode_units
from tieredstore.codec.record import tags_code
from tieredstore.driver.runtime import Runtime
from tieredstore.local import queue_reader
from tieredstore.local.config import LocalConfig
from tieredstore.local.queue_reader import ReadLimits
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import GetStatus
from tieredstore.testing.samples import TOPIC, a_message

COUNT = 1_500
TAGS = ("often", "sometimes", "rare")
CODES = [tags_code(tag) for tag in TAGS] + [0, 7]
LOST_FILES = 2
FILE_BYTES = 65_536


class Asked:
    """By tags, or by what the record says; it counts what it was shown."""

    def __init__(self, codes: frozenset[int], body: bytes = b"") -> None:
        self.codes = codes
        self.shown = 0
        self._body = body

    def matches_tags_code(self, tags_code: int) -> bool:
        self.shown += 1
        low = {code & 0xFFFFFFFF for code in self.codes}
        return tags_code < -(2**31) or tags_code & 0xFFFFFFFF in low

    def matches_record(self, record: bytes) -> bool:
        return self._body in record


class Named(Asked):
    """The same choice, which a store may make by itself."""

    @property
    def tags_codes(self) -> frozenset[int]:
        return self.codes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMessageStore]:
    """Messages of many sizes; the first log files have gone, and the queue does not know."""
    config = LocalConfig(
        store_path=str(tmp_path_factory.mktemp("tags")),
        commit_log_file_bytes=FILE_BYTES,
        queue_file_bytes=20_000,
        index_enabled=False,
        dispatch_interval_ms=0,
        memory_bytes_max=4_000,
        memory_count_max=16,
    )
    store = LocalMessageStore(config, Runtime.inline())
    store.load()
    store.start()
    dice = random.Random(7)
    messages = []
    for number in range(COUNT):
        tag = dice.choices((*TAGS, ""), (50, 10, 1, 5))[0]
        size = dice.choice((10, 100, 100, 900, 3_500))
        properties = {"TAGS": tag} if tag else {}
        messages.append(a_message(number, body_bytes=size, properties=properties))
    store.put_messages(messages)
    assert store._loaded().log.queue.delete_before(LOST_FILES * FILE_BYTES)
    yield store
    store.shutdown()


@given(
    offset=st.one_of(st.integers(0, COUNT - 1), st.integers(0, 400)),
    count_max=st.sampled_from([1, 2, 5, 16, 32, 900]),
    bytes_max=st.sampled_from([1, 500, 2_000, 10_000, 1 << 20]),
    codes=st.frozensets(st.sampled_from(CODES)),
    body=st.sampled_from([b"", b"7|", b"not there"]),
    page_cache_bytes=st.sampled_from([0, 50_000, 300_000, 1 << 40]),
)
def test_both_ways_give_the_same_answer(
    store: LocalMessageStore,
    offset: int,
    count_max: int,
    bytes_max: int,
    codes: frozenset[int],
    body: bytes,
    page_cache_bytes: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_reader, "_page_cache_bytes", lambda: page_cache_bytes)
        asked, named = (
            store.get_message(
                *(TOPIC, 0, offset),
                count_max=count_max,
                bytes_max=bytes_max,
                message_filter=make(codes, body),
            )
            for make in (Asked, Named)
        )
    assert asked == named


def test_it_is_asked_for_no_message(store: LocalMessageStore) -> None:
    named = Named(frozenset([12345]))
    got = store.get_message(TOPIC, 0, 0, message_filter=named)
    assert (got.status, got.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    assert named.shown == 0


def test_a_filter_that_names_no_codes_is_asked(store: LocalMessageStore) -> None:
    class Undecided(Asked):
        tags_codes = None

    filter_ = Undecided(frozenset([12345]))
    got = store.get_message(TOPIC, 0, 0, message_filter=filter_)
    assert (got.next_offset, filter_.shown) == (800, 800)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=20),
    count=st.integers(1, 9),
    size=st.integers(0, 700),
    data=st.data(),
)
def test_the_first_unit_without_room_is_the_same_for_one_and_for_many(
    lengths: list[int], count: int, size: int, data: st.DataObject
) -> None:
    units = decode_units(
        encode_units(
            log_offsets=np.arange(len(lengths)) * 1_000,
            message_bytes=np.array(lengths),
            tags_codes=np.zeros(len(lengths), np.int64),
        )
    )
    limits = ReadLimits(
        count_max=data.draw(st.integers(1, 9)),
        bytes_max=data.draw(st.integers(100, 900)),
        memory_count_max=data.draw(st.integers(1, 16)),
        memory_bytes_max=data.draw(st.integers(1, 2_000)),
        memory_from=data.draw(st.integers(-1, 20)) * 1_000,
    )
    start = data.draw(st.integers(0, len(lengths)))
    full = [
        row
        for row in range(start, len(lengths))
        if limits.is_full(count, size, lengths[row], row * 1_000)
    ]
    found = limits.first_full(units, start, len(lengths), count=count, size=size)
    assert found == (full[0] if full else None)
