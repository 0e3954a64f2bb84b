"""Queues, index and small files that have gone: they are made again from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.codec.golden_files import contents
from tests.local.store_audit import (
    Ack,
    a_config,
    check_acks,
    check_agreement,
    crash,
    opened,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.local.store import LocalMessageStore
from tieredstore.testing.samples import a_message


def filled(root: Path, count: int = 240) -> list[Ack]:
    """Three topics with two queues; one of them has messages at the log's beginning only."""
    store = opened(root)
    acks: list[Ack] = []
    for number in range(count):
        topic = "Early" if number < 60 else ("Orders", "Bills")[number % 2]
        message = a_message(number, topic=topic, queue_id=number // 2 % 2)
        put = store.put_message(message)
        acks.append(Ack.of(topic, message.queue_id, f"UNIQ-{number:08d}", f"key-{number}", put))
        if number % 50 == 0:
            store.flush()
    store.shutdown()
    return acks


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Ack]]:
    root = tmp_path_factory.mktemp("whole")
    return root, filled(root)


def nth(folder: str, place: int) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        sorted((root / folder).iterdir())[place].unlink()

    return remove


def gone(name: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def becomes(name: str, data: bytes) -> Callable[[Path], None]:
    def overwrite(root: Path) -> None:
        (root / name).write_bytes(data)

    return overwrite


LOSSES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda root: None,
    "all queues": gone("consumequeue"),
    "a topic": gone("consumequeue/Orders"),
    "a topic of long ago": gone("consumequeue/Early"),
    "a queue": gone("consumequeue/Bills/1"),
    "the first file of a queue": nth("consumequeue/Orders/0", 0),
    "a middle file of a queue": nth("consumequeue/Orders/0", 1),
    "the last file of a queue": nth("consumequeue/Orders/0", -1),
    "the last file of a queue of long ago": nth("consumequeue/Early/1", -1),
    "the index": gone("index"),
    "the first index file": nth("index", 0),
    "a middle index file": nth("index", 1),
    "the last index file": nth("index", -1),
    "the word on the index": gone("config/tieredstore-index.json"),
    "the checkpoint": gone("checkpoint"),
    "half of the checkpoint": becomes("checkpoint", b"\0" * 20),
    "a sound checkpoint": becomes("checkpoint", b"\xff" * 4096),
    "the sizes": gone("config/tieredstore-sizes.json"),
    "the table of the queues": gone("config/tieredstore-queues.json"),
    "a sound table": becomes("config/tieredstore-queues.json", b'{"version": 1, "queues": 3}'),
    "all that is ours alone": gone("config"),
}


def all_of(*losses: str) -> Callable[[Path], None]:
    def remove(root: Path) -> None:
        for loss in losses:
            LOSSES[loss](root)

    return remove


LOSSES |= {
    "a topic and the table": all_of("a topic of long ago", "the table of the queues"),
    "queues and index": all_of("all queues", "the index"),
    "a queue, an index file, the checkpoint": all_of(
        "a queue", "a middle index file", "the checkpoint"
    ),
}


@pytest.mark.parametrize("abort", [False, True], ids=["clean", "crashed"])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_missing_is_made_again(
    whole: tuple[Path, list[Ack]], tmp_path: Path, loss: str, abort: bool
) -> None:
    source, acks = whole
    root = tmp_path / "store"
    shutil.copytree(source, root)
    if abort:
        (root / "abort").write_bytes(b"1")
    LOSSES[loss](root)
    store = opened(root)
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)
    assert contents(root / "consumequeue") == contents(source / "consumequeue")
    put = store.put_message(a_message(1000, topic="Orders", queue_id=0))
    assert put.queue_offset == 1 + max(
        ack.queue_offset for ack in acks if (ack.topic, ack.queue_id) == ("Orders", 0)
    )
    store.shutdown()
    store = opened(root)
    assert store.recovery is not None
    assert store.recovery.redispatched_count <= 1
    assert not store.recovery.abnormal
    store.shutdown()


def test_a_queue_whose_repair_was_cut_short_is_repaired_by_the_next_opening(
    whole: tuple[Path, list[Ack]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, acks = whole
    root = tmp_path / "store"
    shutil.copytree(source, root)
    shutil.rmtree(root / "consumequeue" / "Early")
    store = LocalMessageStore(a_config(root), Runtime.inline())
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.dispatch.Dispatch.put", _lights_out)
        with pytest.raises(KeyboardInterrupt):
            store.load()
    assert (root / "abort").exists()
    store = opened(root)
    check_acks(store, acks)
    assert check_agreement(store) == len(acks)
    crash(store)
    store = opened(root)
    check_acks(store, acks)
    store.shutdown()


def _lights_out(*_: object) -> None:
    raise KeyboardInterrupt
