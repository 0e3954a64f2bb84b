"""Catalogues published in a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore.driver.provider import Generations, generation_name
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.memory_objects import MemoryObjectClient
from tieredstore.testing.provider_contract import GenerationsContract


class TestPosix(GenerationsContract):
    @pytest.fixture(autouse=True)
    def root(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "tier"

    def open_generations(self, broker: str) -> Generations:
        return PosixProvider(self.folder, "cluster-a", Runtime.inline()).generations(broker)


def test_no_listing_takes_a_published_catalogue_for_a_segment(tmp_path: Path) -> None:
    provider = PosixProvider(tmp_path, "cluster-a", Runtime.inline())
    with provider.open("broker/topic/0", SegmentType.COMMIT_LOG, 0) as segment:
        segment.write(0, b"data")
    provider.generations("broker").create(1, b"data")
    provider.generations("broker/topic").create(1, b"data")
    for prefix in ("", "broker", "broker/topic", ".catalog"):
        assert [each.path for each in provider.list(prefix)] == (
            [] if prefix == ".catalog" else ["broker/topic/0"]
        )
    assert list(provider.leftovers()) == []


def test_a_log_is_published_by_itself() -> None:
    provider = ObjectProvider(MemoryObjectClient(), "cluster-a", Runtime.inline())
    assert provider.generations("broker") is None


def test_what_is_gone_with_its_process_is_published_nowhere() -> None:
    assert MemoryProvider(Runtime.inline()).generations("broker") is None


def test_other_files_are_passed_over_and_what_a_crash_left_goes(tmp_path: Path) -> None:
    generations = PosixProvider(tmp_path, "c", Runtime.inline()).generations("broker")
    generations.create(1, b"data")
    folder = Path(generations.describe())
    for name in ("notes.txt", "7.json", generation_name(0)):
        (folder / name).write_bytes(b"")
    (folder / f"{generation_name(2)}.abc.new").write_bytes(b"whole")
    (folder / f"{generation_name(2)}.def.new.tmp").write_bytes(b"half")
    (folder / f"{generation_name(0)}.tmp").write_bytes(b"not ours")
    assert [each.number for each in generations.listed()] == [1]
    generations.create(2, b"data")
    generations.delete([2])
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [
            generation_name(0),
            f"{generation_name(0)}.tmp",
            generation_name(1),
            "7.json",
            "notes.txt",
        ]
    )


@pytest.mark.parametrize("is_renewed", [True, False], ids=["replaced", "dropped"])
def test_a_listing_shows_what_replaced_its_files_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
) -> None:
    generations = PosixProvider(tmp_path, "c", Runtime.inline()).generations("broker")
    generations.create(1, b"data")
    generations.create(2, b"data")
    listdir = os.listdir

    def published_after(folder: Path) -> list[str]:
        names = listdir(folder)
        monkeypatch.setattr(os, "listdir", listdir)
        if is_renewed:
            generations.create(3, b"newer")
        generations.delete([1, 2])
        return names

    monkeypatch.setattr(os, "listdir", published_after)
    assert [each.number for each in generations.listed()] == ([3] if is_renewed else [])


def test_a_listing_gives_up_when_its_files_keep_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations = PosixProvider(tmp_path, "c", Runtime.inline()).generations("broker")
    monkeypatch.setattr(os, "listdir", lambda _: [generation_name(7)])
    with pytest.raises(BackendUnavailableError, match="files kept going"):
        generations.listed()


@pytest.mark.skipif("__import__('os').geteuid() == 0", reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_refuses(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    generations = PosixProvider(tmp_path, "c", Runtime.inline()).generations("broker")
    with pytest.raises(BackendRefusedError):
        generations.create(1, b"data")
    tmp_path.chmod(0o755)


_CRASHING = """
import os, sys
import subprocess
import sys
from pathlib import Path
from tieredstore.driver.runtime import Runtime
from tieredstore.providers.posix import PosixProvider

def fsync(descriptor):
    if "json" in os.readlink(f"/proc/self/fd/{descriptor}"):
        os._exit(9)

os.fsync = fsync
PosixProvider(Path(sys.argv[1]), "c", Runtime.inline()).generations("broker").create(2, b"data")
"""


def test_what_a_killed_process_was_writing_goes_with_its_generation(tmp_path: Path) -> None:
    generations = PosixProvider(tmp_path, "c", Runtime.inline()).generations("broker")
    killed = subprocess.run([sys.executable, "-c", _CRASHING, str(tmp_path)], check=False)
    assert killed.returncode == 9
    folder = Path(generations.describe())
    assert [path.name.endswith(".tmp") for path in folder.iterdir()] == [True]
    for number in (1, 2, 3):
        generations.create(number, b"data")
    generations.delete([1, 2])
    assert [path.name for path in folder.iterdir()] == [generation_name(3)]
