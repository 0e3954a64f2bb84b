"""If a link has the name of a file to be made, its target is not changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.store_audit import a_config
from tieredstore.driver.durable import FileLock, write_atomically
from tieredstore.driver.runtime import Runtime
from tieredstore.index.keys import KeyNotes
from tieredstore.local.recovery import CHECKPOINT_BYTES, StoreCheckpoint
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import BackendRefusedError, MetadataError
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import a_message

PRECIOUS = b"precious\n" * (CHECKPOINT_BYTES // 9 + 1)


def put_one(root: Path) -> None:
    store = LocalMessageStore(a_config(root), Runtime.inline())
    try:
        store.load()
        store.start()
        store.put_message(a_message(0))
        store.flush()
        store.delete_topics([a_message(0).topic])
    finally:
        store.shutdown()


@pytest.mark.parametrize(
    "name",
    [
        "lock",
        "abort",
        "config/tieredstore-queues.json.tmp",
        "config/tieredstore-sizes.json.tmp",
        "config/tieredstore-deleted.json.tmp",
        "config/tieredstore-index.json.tmp",
        "checkpoint.tmp",
    ],
)
@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_a_local_store_makes_nothing_through_a_link(
    tmp_path: Path, name: str, leads_somewhere: bool
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "store" / name
    if leads_somewhere:
        victim.write_bytes(PRECIOUS)
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(BackendRefusedError):
        put_one(tmp_path / "store")
    assert victim.exists() == leads_somewhere
    assert not leads_somewhere or victim.read_bytes() == PRECIOUS
    link.unlink()
    put_one(tmp_path / "store")


def test_a_checkpoint_that_is_a_link_becomes_a_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(PRECIOUS[:CHECKPOINT_BYTES])
    path = tmp_path / "checkpoint"
    path.symlink_to(victim)
    checkpoint = StoreCheckpoint.open(path)
    checkpoint.confirm(77)
    checkpoint.flush()
    assert victim.read_bytes() == PRECIOUS[:CHECKPOINT_BYTES]
    assert not path.is_symlink()
    assert StoreCheckpoint.open(path).values.confirmed_offset == 77


def catalogue(path: Path) -> None:
    JsonMetadataStore.open(path).close()


def catalogue_with_a_topic(path: Path) -> None:
    with_one = JsonMetadataStore.open(path)
    try:
        with_one.add_topic("T")
    finally:
        with_one.close()


@pytest.mark.parametrize(
    ("suffix", "use"), [(".lock", catalogue), (".journal.tmp", catalogue_with_a_topic)]
)
def test_a_catalogue_makes_nothing_through_a_link(
    tmp_path: Path, suffix: str, use: Callable[[Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(PRECIOUS)
    (tmp_path / f"catalogue.json{suffix}").symlink_to(victim)
    with pytest.raises(MetadataError):
        use(tmp_path / "catalogue.json")
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_whatever_makes_a_file_makes_none_through_a_link(
    tmp_path: Path, leads_somewhere: bool
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    if leads_somewhere:
        victim.write_bytes(PRECIOUS)
    link.symlink_to(victim)
    (tmp_path / "file.tmp").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_atomically(tmp_path / "file", [b"new"])
    with pytest.raises(OSError, match="symbolic links"):
        FileLock.acquire(link)
    with pytest.raises(OSError, match="symbolic links"):
        KeyNotes.create(link, begin_timestamp=1)
    assert victim.exists() == leads_somewhere
    assert not leads_somewhere or victim.read_bytes() == PRECIOUS


def test_a_segment_is_not_made_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    runtime = Runtime.inline()
    provider = PosixProvider(tmp_path / "tier", "c", runtime)
    one = provider.open("b/T/0", SegmentType.COMMIT_LOG, 0)
    one.write(0, b"x")
    [file] = [path for path in (tmp_path / "tier").rglob("*") if path.is_file()]
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(BackendRefusedError):
        provider.open("b/T/0", SegmentType.COMMIT_LOG, 0).write(0, b"x")
    assert not victim.exists()
    provider.close()
