"""Where jobs stage, in a directory and in an object store's double: outside every tier."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tieredstore.driver.durable import make_directories
from tieredstore.driver.provider import LEFTOVER_KIND, Scratch, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendUnavailableError, SegmentNotFoundError
from tieredstore.providers import posix_shelf
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.provider_contract import ScratchContract


def given(provider: SegmentProvider, broker: str) -> Scratch:
    found = provider.scratch(broker)
    assert found is not None
    return found


def in_objects(objects: MemoryObjects) -> ObjectProvider:
    return ObjectProvider(MemoryObjectClient(objects), "cluster-a", Runtime.inline())


class TestPosix(ScratchContract):
    @pytest.fixture(autouse=True)
    def root(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "tier"

    def open_scratch(self, broker: str) -> Scratch:
        return given(PosixProvider(self.folder, "cluster-a", Runtime.inline()), broker)

    def test_empty_folders_go_with_what_was_in_them(self) -> None:
        scratch = self.open_scratch("b")
        scratch.put("load/run/a", [b"1"])
        scratch.delete(["load/run/a"])
        assert list(self.folder.iterdir()) == []

    def test_a_stream_that_fails_leaves_nothing(self) -> None:
        scratch = self.open_scratch("b")
        with pytest.raises(SegmentNotFoundError):
            scratch.put("a", (scratch.read("b", 0, 1) for _ in range(1)))
        assert scratch.listed() == []

    def test_a_folder_that_is_removed_before_its_first_file_is_made_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another job deletes the last file in it just then, and with it the folder."""
        scratch = self.open_scratch("b")
        scratch.put("keys/other", [b"1"])

        def emptied(folder: Path) -> None:
            make_directories(folder)
            monkeypatch.undo()
            scratch.delete(["keys/other"])

        monkeypatch.setattr(posix_shelf, "make_directories", emptied)
        assert scratch.put("keys/mine", [b"22"]) == 2
        assert [each.name for each in scratch.listed()] == ["keys/mine"]

    def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while there are no descriptors left. A job would leave out what is in it."""
        scratch = self.open_scratch("b")
        scratch.put("keys/1/a", [b"1"])
        scandir = os.scandir

        def no_descriptor(path: str) -> Any:
            if os.path.basename(path) == "1":
                raise OSError(errno.EMFILE, "too many open files")
            return scandir(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", no_descriptor)
            with pytest.raises(BackendUnavailableError, match="too many open files"):
                scratch.listed("keys")
        assert [each.name for each in scratch.listed("keys")] == ["keys/1/a"]


class TestObjects(ScratchContract):
    @pytest.fixture(autouse=True)
    def bucket(self) -> None:
        self.objects = MemoryObjects()

    def open_scratch(self, broker: str) -> Scratch:
        return given(in_objects(self.objects), broker)


@pytest.mark.parametrize("kind", ["posix", "objects"])
def test_what_is_staged_is_a_leftover_and_no_segment(kind: str, tmp_path: Path) -> None:
    provider: SegmentProvider = in_objects(MemoryObjects())
    if kind == "posix":
        provider = PosixProvider(tmp_path, "cluster-a", Runtime.inline())
    given(provider, "b").put("load/x", [b"123"])
    given(provider, "c").put("load/x", [b"1"])
    assert list(provider.list()) == []
    (found,) = provider.leftovers("b")
    assert (found.kind, found.name, found.size) == (LEFTOVER_KIND, "load/x", 3)
    assert provider.leftovers("b/Topic") == []
    provider.remove_leftovers([found])
    assert provider.leftovers("b") == []
    assert len(provider.leftovers("c")) == 1


def test_a_provider_may_have_no_such_place() -> None:
    assert MemoryProvider(Runtime.inline()).scratch("b") is None
