"""A damaged index file: the store opens after a clean end too, and can be destroyed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.local.store_audit import a_config, opened
from tieredstore.driver.runtime import Runtime
from tieredstore.local.files import StoreFiles
from tieredstore.local.store import LocalMessageStore
from tieredstore.testing.samples import TOPIC, a_message


def damaged(root: Path) -> None:
    store = opened(root)
    for number in range(100):
        store.put_message(a_message(number))
    store.shutdown()
    os.truncate(min((root / "index").iterdir()), 1_000)


def test_after_a_clean_end_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(tmp_path)
    warned: list[Path] = []
    monkeypatch.setattr(StoreFiles, "create_abort", lambda files: warned.append(files.root))
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    assert warned == [tmp_path]  # a crash meanwhile must not leave half of it for whole
    for number in (0, 50, 99):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1
    store.shutdown()


def test_a_sound_index_is_no_reason_for_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.put_message(a_message(0))
    store.shutdown()
    warned: list[Path] = []
    monkeypatch.setattr(StoreFiles, "create_abort", lambda files: warned.append(files.root))
    store = LocalMessageStore(a_config(tmp_path), Runtime.inline())
    store.load()
    assert warned == []
    store.shutdown()


def test_a_store_with_it_can_be_destroyed(tmp_path: Path) -> None:
    damaged(tmp_path)
    LocalMessageStore(a_config(tmp_path), Runtime.inline()).destroy()
    assert list((tmp_path / "index").iterdir()) == []
    store = opened(tmp_path)
    assert store.max_offset(TOPIC, 0) is None
    store.shutdown()


@pytest.mark.parametrize("bit", range(0, 64, 5))
def test_keys_put_later_are_found_after_a_flip_in_the_end_of_its_header(
    tmp_path: Path, bit: int
) -> None:
    store = opened(tmp_path)
    for number in range(100):
        store.put_message(a_message(number))
    store.shutdown()
    newest = max((tmp_path / "index").iterdir())
    data = bytearray(newest.read_bytes())
    data[31 - bit // 8] ^= 1 << bit % 8  # of the last log offset, behind 24 bytes
    newest.write_bytes(data)
    store = opened(tmp_path)
    store.put_message(a_message(100))
    for number in (0, 50, 99, 100):
        assert len(store.query_message(TOPIC, f"key-{number}").messages) == 1
    store.shutdown()
