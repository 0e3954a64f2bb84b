"""Dispatch while puts go on: nothing is missed, nothing comes twice, others are told in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import DispatchRequest
from tieredstore.testing.samples import TOPIC, a_message

WRITERS, MESSAGES = 4, 400


@pytest.mark.parametrize("interval_ms", [0, 1])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_message_is_dispatched_once_and_in_log_order(
    tmp_path: Path, interval_ms: int, flush: str
) -> None:
    config = LocalConfig(
        store_path=str(tmp_path),
        commit_log_file_bytes=1 << 20,
        queue_file_bytes=4_000,
        index_slot_count=101,
        index_item_count=100_000,
        dispatch_count_max=7,
        dispatch_interval_ms=interval_ms,
        flush_disk_type=flush,
    )
    seen: list[DispatchRequest] = []
    with Runtime.threads() as runtime:
        store = LocalMessageStore(config, runtime)
        store.add_dispatcher(seen.extend)
        store.load()
        store.start()

        def put(queue_id: int) -> None:
            for number in range(0, MESSAGES, 5):
                batch = [a_message(n, queue_id=queue_id) for n in range(number, number + 5)]
                assert store.put_messages(batch).all_ok

        writers = [runtime.fetch.submit(put, queue_id) for queue_id in range(WRITERS)]
        while not all(writer.done() for writer in writers):
            store.max_offset(TOPIC, 0)  # a reader that dispatches for the writers
        for writer in writers:
            writer.result()
        for queue_id in range(WRITERS):
            assert store.max_offset(TOPIC, queue_id) == MESSAGES
        store.shutdown()
    places = [request.log_offset for request in seen]
    assert places == sorted(set(places))
    assert len(places) == WRITERS * MESSAGES
    for queue_id in range(WRITERS):
        offsets = [one.queue_offset for one in seen if one.queue_id == queue_id]
        assert offsets == list(range(MESSAGES))


def test_a_dispatcher_that_fails_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = LocalConfig(store_path=str(tmp_path), dispatch_interval_ms=0, index_enabled=False)
    store = LocalMessageStore(config, Runtime.inline())
    seen: list[DispatchRequest] = []

    def fail(requests: object) -> None:
        raise RuntimeError("somebody else's trouble")

    store.add_dispatcher(fail)
    store.add_dispatcher(seen.extend)
    store.load()
    store.start()
    for number in range(3):
        store.put_message(a_message(number))
    assert [request.queue_offset for request in seen] == [0, 1, 2]
    assert store.max_offset(TOPIC, 0) == 3
    assert "somebody else's trouble" in caplog.text
    store.shutdown()
    assert not (tmp_path / "abort").exists()
