"""Keys of a local store and its tier: answers that are cut, messages without an offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.access.tiered_kit import a_config
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import TRANSACTION_PREPARED
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message, QueryResult
from tieredstore.model.values import PutStatus
from tieredstore.providers.memory import MemoryProvider

TOPIC = "Orders"
LIMIT = 20  # of the local store's own answers


class Keyed:
    """A local store with a limit of its own, wrapped; every message is a step later."""

    def __init__(self, folder: Path, *, step_ms: int = 1000, **settings: Any) -> None:
        self.runtime = Runtime.inline()
        self.step_ms = step_ms
        local = LocalConfig(
            store_path=str(folder / "local"),
            commit_log_file_bytes=1 << 16,
            queue_file_bytes=2000,
            index_slot_count=101,
            index_item_count=4000,
            dispatch_interval_ms=0,
            flush_disk_type="SYNC_FLUSH",
            query_count_max=LIMIT,
        )
        sizes = {"index_slot_count": 64, "index_item_count": 3000}
        self.local = LocalMessageStore(local, self.runtime)
        self.store = TieredMessageStore(
            self.local,
            a_config(folder, **{**sizes, **settings}),
            runtime=self.runtime,
            provider=MemoryProvider(self.runtime),
        )
        self.store.load()
        self.store.start()

    def put(self, count: int, *, first: int = 0, sys_flag: int = 0) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        for number in range(first, first + count):
            properties = {"KEYS": "k", "UNIQ_KEY": f"u{number}"}
            message = Message(
                topic=TOPIC,
                queue_id=0,
                body=str(number).encode(),
                properties=properties,
                sys_flag=sys_flag,
            )
            assert self.store.put_message(message).status is PutStatus.PUT_OK
            clock.advance(self.step_ms)


def bodies(result: QueryResult) -> list[int]:
    return [int(decode_message(one.record).body) for one in result.messages]


def test_a_local_store_that_gives_fewer_than_it_has_says_so(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path)
    keyed.put(LIMIT)
    assert keyed.local.query_message(TOPIC, "k", count_max=1000) == keyed.local.query_message(
        TOPIC, "k", count_max=LIMIT
    )
    assert keyed.local.query_message(TOPIC, "k", count_max=1000).complete
    keyed.put(1, first=LIMIT)
    cut = keyed.local.query_message(TOPIC, "k", count_max=1000)
    assert (len(cut.messages), cut.complete, cut.is_cut) == (LIMIT, False, True)
    asked = keyed.local.query_message(TOPIC, "k", count_max=LIMIT)
    assert (len(asked.messages), asked.complete, asked.is_cut) == (LIMIT, True, False)
    keyed.store.shutdown()


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_a_limit_of_the_next_store_cuts_no_answer_of_both(
    tmp_path: Path, is_uploaded: bool
) -> None:
    keyed = Keyed(tmp_path)
    keyed.put(70)
    if is_uploaded:
        assert keyed.store.flush()
    result = keyed.store.query_message(TOPIC, "k", count_max=1000)
    assert bodies(result) == list(range(69, -1, -1))
    assert result.complete
    result = keyed.store.query_message(TOPIC, "k", count_max=33)
    assert bodies(result) == list(range(69, 36, -1))
    assert result.complete
    keyed.store.shutdown(drain=False)


@pytest.mark.parametrize("is_uploaded", [True, False])
def test_a_cut_through_one_millisecond_is_filled_from_the_tier_or_owned_up_to(
    tmp_path: Path, is_uploaded: bool
) -> None:
    keyed = Keyed(tmp_path, step_ms=0)
    keyed.put(50)
    if is_uploaded:
        assert keyed.store.flush()
    result = keyed.store.query_message(TOPIC, "k", count_max=1000)
    assert sorted(bodies(result)) == list(range(0 if is_uploaded else 50 - LIMIT, 50))
    assert not result.complete
    keyed.store.shutdown(drain=False)


def test_half_messages_hide_neither_each_other_nor_a_message(tmp_path: Path) -> None:
    """All of them have queue offset 0, as the first message has."""
    keyed = Keyed(tmp_path)
    keyed.put(1)
    keyed.put(2, first=1, sys_flag=TRANSACTION_PREPARED)
    for _ in range(2):
        result = keyed.store.query_message(TOPIC, "k")
        assert bodies(result) == bodies(keyed.local.query_message(TOPIC, "k")) == [2, 1, 0]
        assert keyed.store.flush()  # now the message is in the tier as well
    keyed.store.shutdown()
