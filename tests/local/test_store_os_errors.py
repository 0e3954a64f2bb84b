"""Each call to the operating system fails once: what leaves the store is an error of ours.

And the store is what it was: it opens again, with every message that was acknowledged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.failing_calls import refused_call
from tests.local.store_audit import a_config, opened, parts_of
from tieredstore.driver.runtime import Runtime
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import TieredStoreError
from tieredstore.testing.samples import TOPIC, a_message

MESSAGES = 30
SIZES = {"commit_log_file_bytes": 4_096}

Operation = Callable[[], object]


def filled(root: Path) -> LocalMessageStore:
    store = opened(root, **SIZES)
    for number in range(MESSAGES):
        assert store.put_message(a_message(number, queue_id=number % 2, body_bytes=100)).stored
    store.flush()
    return store


def unopened(root: Path) -> LocalMessageStore:
    return LocalMessageStore(a_config(root, **SIZES), Runtime.inline())


def load(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    store = unopened(root)
    return store, store.load


def load_after_a_crash(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    (root / "abort").write_text("1")
    store = unopened(root)
    return store, store.load


def load_and_build_anew(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = unopened(root)
    return store, store.load


def start(root: Path) -> tuple[LocalMessageStore, Operation]:
    filled(root).shutdown()
    store = unopened(root)
    store.load()
    return store, store.start


def flush(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.put_message(a_message(MESSAGES))
    return store, store.flush


def put(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)

    def puts() -> None:
        for number in range(MESSAGES, 2 * MESSAGES):
            store.put_message(a_message(number, queue_id=number % 2, body_bytes=100))

    return store, puts


def expire(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    os.utime(parts_of(store).log.queue.files[0].path, (1, 1))
    return store, parts_of(store).retention.step


def delete(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.put_message(a_message(0, topic="Other"))
    return store, lambda: store.delete_topics(["Other"])


def shutdown(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    return store, store.shutdown


def read_beside(root: Path) -> tuple[LocalMessageStore, Operation]:
    store = filled(root)
    store.shutdown()
    return store, lambda: LocalReader.open(root).close()


OPERATIONS = (
    *(load, load_after_a_crash, load_and_build_anew, start, flush, put, expire, delete),
    *(shutdown, read_beside),
)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.__name__ for each in OPERATIONS])
def test_whatever_the_system_refuses_is_an_error_of_ours_and_loses_nothing(
    operation: Callable[[Path], tuple[LocalMessageStore, Operation]], tmp_path: Path
) -> None:
    struck: set[str | None] = set()

    def refuse(number: int) -> bool:
        root = tmp_path / f"{number}"
        store, call = operation(root)
        name = refused_call(call, number)
        store.shutdown()
        store = opened(root, **SIZES)
        kept = sum(store.max_offset(TOPIC, queue_id) or 0 for queue_id in (0, 1))
        assert kept >= MESSAGES
        store.shutdown()
        shutil.rmtree(root)
        struck.add(name)
        return name is not None

    every_step(refuse)
    assert len(struck - {None}) >= 2


def test_a_thread_that_cannot_be_started_is_an_error_of_ours_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unopened(tmp_path)
    store.load()
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(Runtime, "service", refuse)
        with pytest.raises(TieredStoreError, match="can't start new thread"):
            store.start()
    store.start()
    assert store.put_message(a_message(0)).stored
    store.shutdown()
