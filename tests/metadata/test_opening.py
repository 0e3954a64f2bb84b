"""What a store does about the files it finds: damaged, missing, overtaken by RocketMQ."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import CatalogueLockedError, MetadataError
from tieredstore.model.values import SegmentRecord
from tieredstore.testing.metadata_contract import log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tieredStoreMetadata.json"


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@pytest.mark.parametrize("damage", [b"", b" \n", b"{", b"[]", b"\xff\xfe", b"\0" * 99])
def test_the_backup_serves_where_the_snapshot_cannot(path: Path, damage: bytes) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    path.write_bytes(damage)
    with JsonMetadataStore.open(path) as store:
        assert store.report.used_backup
        assert len(store.topics()) == 3
        store.put(log_segment(0))
    with JsonMetadataStore.open(path) as store:
        assert not store.report.used_backup
        assert len(store.segments()) == 5
    # The damaged file did not take the place of the only sound one, and is still there.
    assert beside(path, ".bak").read_bytes() == (GOLDEN / "tier-index.json").read_bytes()
    assert beside(path, ".damaged").read_bytes() == damage


def test_a_whole_text_with_an_odd_row_is_not_thrown_away_for_an_older_one(path: Path) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    path.write_bytes(b'{"topicMetadataTable":{"T":{"topicId":"x"}}}')
    for read_only in (False, True):
        with pytest.raises(MetadataError, match="topicMetadataTable T"):
            JsonMetadataStore.open(path, read_only=read_only)


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_a_journal_whose_snapshot_is_damaged_is_not_called_stale(
    path: Path, damage: bytes | None
) -> None:
    for number in range(3):
        with JsonMetadataStore.open(path) as store:
            store.put(log_segment(number))
    killed(path, log_segment(7))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(MetadataError, match="its journal does not follow the backup"):
        JsonMetadataStore.open(path)
    path.write_bytes(before[path.name])
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments()) == 4


def killed(path: Path, row: SegmentRecord) -> None:
    """Commit in a process that then dies."""
    code = (
        "import os, pickle, sys; from tieredstore.metadata import JsonMetadataStore;"
        "JsonMetadataStore.open(sys.argv[1]).put(pickle.loads(sys.stdin.buffer.read()));"
        "os._exit(0)"
    )
    command = [sys.executable, "-c", code, str(path)]
    subprocess.run(command, input=pickle.dumps(row), check=True)


FORK = """
import os, sys
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.errors import OtherProcessError
from tieredstore.testing.metadata_contract import log_segment

with JsonMetadataStore.open(sys.argv[1]) as store:
    store.put(log_segment(0))
    child = os.fork()
    if child == 0:
        try:
            store.put(log_segment(1))
        except OtherProcessError:
            try:
                store.close()
            except OtherProcessError:
                os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.put(log_segment(2))
"""


def test_a_forked_child_writes_nothing_and_harms_nothing(path: Path) -> None:
    # In a process of its own: to fork one with threads is what no one should do.
    subprocess.run([sys.executable, "-c", FORK, str(path)], check=True)
    with JsonMetadataStore.open(path, read_only=True) as reader:
        assert [row.base_offset for row in reader.segments()] == [
            log_segment(0).base_offset,
            log_segment(2).base_offset,
        ]


def test_a_journal_without_a_whole_line_is_kept_aside(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
    journal = beside(path, ".journal")
    journal.write_bytes(b"hello world")
    with JsonMetadataStore.open(path) as store:
        assert store.report.stale_journal == beside(path, ".journal.stale")
        assert len(store.segments()) == 1
    assert beside(path, ".journal.stale").read_bytes() == b"hello world"


def test_the_snapshot_and_its_backup_are_two_files(path: Path) -> None:
    for number in range(3):
        with JsonMetadataStore.open(path) as store:
            store.put(log_segment(number))
    assert not path.samefile(beside(path, ".bak"))


def test_the_backup_serves_where_the_snapshot_is_missing(path: Path) -> None:
    beside(path, ".bak").write_bytes((GOLDEN / "tier-index.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        assert store.report.used_backup
        assert len(store.topics()) == 3


@pytest.mark.parametrize("suffix", ["", ".bak"])
def test_files_of_which_none_can_be_used_are_no_empty_store(path: Path, suffix: str) -> None:
    beside(path, suffix).write_bytes(b'{"indexFileSegmentTable":{"p":{0:{"size":-5}}}}')
    for read_only in (False, True):
        with pytest.raises(MetadataError, match="indexFileSegmentTable p 0: size -5"):
            JsonMetadataStore.open(path, read_only=read_only)
    JsonMetadataStore.open(path.with_name("other")).close()  # the lock was given back


def test_a_snapshot_that_went_away_is_no_empty_store(path: Path) -> None:
    JsonMetadataStore.open(path).close()
    with JsonMetadataStore.open(path) as store:
        store.compact()
        store.put(log_segment(0))
        journal = beside(path, ".journal").read_bytes()
    path.unlink()
    beside(path, ".bak").unlink()
    beside(path, ".journal").write_bytes(journal)
    with pytest.raises(MetadataError, match="is gone"):
        JsonMetadataStore.open(path)
    assert beside(path, ".journal").read_bytes() == journal


def test_damaged_notes_are_no_empty_notes(path: Path) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put_note("kind", "key", 1)
    notes = beside(path, ".notes")
    notes.write_bytes(notes.read_bytes().replace(b":1}", b":2}"))
    with pytest.raises(MetadataError, match="damaged"):
        JsonMetadataStore.open(path)


def test_two_names_of_one_file_are_one_store(path: Path) -> None:
    other = path.with_name("link")
    other.symlink_to(path)
    with JsonMetadataStore.open(other) as store:
        store.put(log_segment(0))
        with pytest.raises(CatalogueLockedError):
            JsonMetadataStore.open(path)
    assert other.is_symlink()
    assert json.loads(path.read_bytes().replace(b"{0:", b'{"0":'))


def test_what_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="cannot be read"):
        JsonMetadataStore.open(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataError):
        JsonMetadataStore.open(tmp_path / "file" / "below")
    with pytest.raises(MetadataError):
        JsonMetadataStore.open(tmp_path / "file" / "below", read_only=True)


# -- RocketMQ writes in between ---------------------------------------------------------------


@pytest.fixture
def overtaken(path: Path) -> Path:
    """A catalogue whose journal RocketMQ has overtaken."""
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0, path="lost"))
        journal = beside(path, ".journal").read_bytes()
    beside(path, ".journal").write_bytes(journal)
    beside(path, ".bak").write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    path.write_bytes((GOLDEN / "tier-posix-after-shutdown.json").read_bytes())
    return path


def test_an_overtaken_journal_is_set_aside_and_reported(
    overtaken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = beside(overtaken, ".journal").read_bytes()
    with JsonMetadataStore.open(overtaken) as store:
        stale = beside(overtaken, ".journal.stale")
        assert store.report.stale_journal == stale
        assert store.report.replayed_lines == 0
        assert stale.read_bytes() == journal
        assert not store.segments("lost")
        golden = GOLDEN / "tier-posix-after-shutdown.json"
        assert store.snapshot_bytes() == golden.read_bytes()
    assert str(stale) in caplog.text
    assert not beside(overtaken, ".journal").exists()


def test_stale_journals_are_numbered_and_not_without_end(overtaken: Path) -> None:
    journal = beside(overtaken, ".journal").read_bytes()
    for number in range(100):
        beside(overtaken, ".journal").write_bytes(journal)
        with JsonMetadataStore.open(overtaken) as store:
            stale = store.report.stale_journal
        assert stale == beside(overtaken, f".journal.stale{f'.{number}' if number else ''}")
    beside(overtaken, ".journal").write_bytes(journal)
    with pytest.raises(MetadataError, match="100 of them"):
        JsonMetadataStore.open(overtaken)


def test_an_overtaken_journal_without_changes_is_dropped(overtaken: Path) -> None:
    journal = beside(overtaken, ".journal")
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    with JsonMetadataStore.open(overtaken) as store:
        assert store.report.stale_journal is None
        assert not journal.exists()
