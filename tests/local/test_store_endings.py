"""Ends that go wrong: everything closes, the lock is free, nothing is written that is no good."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN
from tests.local.store_audit import a_config, check_agreement, opened, parts_of
from tieredstore.driver.runtime import Runtime
from tieredstore.local import index_service, recovery, side_file
from tieredstore.local.commit_log import CommitLog
from tieredstore.local.config import LocalConfig
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.files import StoreFiles
from tieredstore.local.index_service import IndexService
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendError, BackendRefusedError, InvalidConfigError
from tieredstore.testing.samples import TOPIC, a_message


def no_room(*_: object, **__: object) -> Any:
    raise OSError(28, "No space left on device")


def digests(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(root)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in root.rglob("*")
        if path.is_file()
    }


FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "index state": lambda patch: patch.setattr(index_service, "write_atomically", no_room),
    "table of queues": lambda patch: patch.setattr(side_file, "write_atomically", no_room),
    "abort file": lambda patch: patch.setattr(StoreFiles, "remove_abort", no_room),
    "index flush": lambda patch: patch.setattr(IndexService, "flush", no_room),
    "index close": lambda patch: patch.setattr(IndexService, "close", no_room),
    "queues close": lambda patch: patch.setattr(ConsumeQueues, "close", no_room),
    "log close": lambda patch: patch.setattr(CommitLog, "close", no_room),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_store_that_cannot_end_well_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        store.shutdown()
        store.shutdown()
    store = opened(tmp_path)
    assert check_agreement(store) == 30
    assert store.put_message(a_message(30)).stored
    store.shutdown()
    assert not (tmp_path / "abort").exists()


def test_an_end_without_a_directory_for_its_tables_frees_the_lock(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    shutil.rmtree(tmp_path / "config")
    (tmp_path / "config").write_text("in the way")
    store.shutdown()
    (tmp_path / "config").unlink()
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) == 30
    store.shutdown()


@pytest.mark.parametrize("module", [index_service, side_file, recovery])
def test_what_cannot_be_flushed_is_an_error_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number, body_bytes=900) for number in range(60)])
    with monkeypatch.context() as patch:
        for name in ("write_atomically", "make_directories"):
            if hasattr(module, name):
                patch.setattr(module, name, no_room)
        if module is recovery:
            patch.setattr(recovery.StoreCheckpoint, "flush", no_room)
        with pytest.raises(BackendError, match="No space left"):
            store.flush()
    store.flush()
    store.shutdown()


def test_a_start_that_cannot_write_is_an_error_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.local.files.write_all", no_room)
        with pytest.raises(BackendRefusedError, match="No space left"):
            store.start()
    store.start()
    store.shutdown()


def test_a_store_that_is_refused_is_as_it_was_before(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    store.shutdown()
    before = digests(tmp_path)
    with pytest.raises(InvalidConfigError, match="index_slot_count"):
        opened(tmp_path, index_slot_count=77)
    assert digests(tmp_path) == before
    store = opened(tmp_path)
    assert len(store.query_message(TOPIC, "key-7").messages) == 1
    store.shutdown()


def test_a_store_of_java_that_is_refused_is_as_it_was_before(tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(GOLDEN / "local-clean", root)
    before = digests(root)
    with pytest.raises(InvalidConfigError, match="commit_log_file_bytes"):
        LocalMessageStore(LocalConfig(store_path=str(root)), Runtime.inline()).load()
    assert digests(root) == before


def test_an_index_that_is_closed_has_written_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(30)])
    index = parts_of(store).index
    assert index is not None
    before = digests(tmp_path)
    index.close()
    assert digests(tmp_path) == before
    parts_of(store).index = None
    store.shutdown()
