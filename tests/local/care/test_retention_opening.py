"""The first look at the disk is taken when a store opens, and what it sees is what `df` says."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from tests.disk_with_room.sitecustomize import real_disk_usage
from tieredstore.driver.runtime import Runtime
from tieredstore.local import store as local_store
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import GetStatus, PutStatus
from tieredstore.testing.samples import TOPIC, a_message

FILE_BYTES = 8_192
NOW_MS = 1_700_000_000_000


def test_a_store_that_opens_on_a_full_disk_refuses_puts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def opened() -> LocalMessageStore:
        config = LocalConfig(
            store_path=str(tmp_path), commit_log_file_bytes=FILE_BYTES, dispatch_interval_ms=0
        )
        store = LocalMessageStore(config, Runtime.inline(now_ms=NOW_MS))
        store.load()
        store.start()
        return store

    store = opened()
    store.put_messages([a_message(number, body_bytes=200) for number in range(100)])
    store.shutdown()
    for path in (tmp_path / "commitlog").iterdir():
        os.utime(path, (0, 0))  # expired long ago, but nobody has said yet what a tier needs
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    used = [91]
    monkeypatch.setattr(local_store, "disk_used_percent", lambda _path: used[0])
    with caplog.at_level(logging.WARNING):
        store = opened()
    assert "full to 91 %" in caplog.text
    assert store.put_message(a_message(100)).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.get_message(TOPIC, 0, 0).status is GetStatus.FOUND
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == names
    store.shutdown()
    used[0] = 90
    store = opened()
    assert store.put_message(a_message(100)).queue_offset == 100
    store.shutdown()


def test_a_disk_is_as_full_as_df_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", real_disk_usage)
    disk = os.statvfs(tmp_path)
    used = disk.f_blocks - disk.f_bfree
    percent = used * 100 / (used + disk.f_bavail)
    assert abs(local_store.disk_used_percent(tmp_path) - percent) < 5  # others write to it, too
