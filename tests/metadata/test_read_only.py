"""Readers change nothing, and see what a writer does even while it does it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tieredstore.driver.metadata import MetadataStore
from tieredstore.metadata import JsonMetadataStore, files
from tieredstore.metadata.files import CatalogueFiles, load
from tieredstore.metadata.local_copy import ReadCopy
from tieredstore.model.errors import MetadataError
from tieredstore.testing.metadata_contract import TOPIC, log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"
PLACE = "broker-a/Orders/0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "tieredStoreMetadata.json"
    path.parent.mkdir()
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    return path


def reader_of(path: Path) -> JsonMetadataStore:
    return JsonMetadataStore.open(path, read_only=True)


def with_journal(path: Path) -> bytes:
    """Leave a journal of two lines behind, as a killed writer does."""
    journal = path.with_name(path.name + ".journal")
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        store.put(log_segment(1))
        lines = journal.read_bytes()
    path.write_bytes((GOLDEN / "tier-posix.json").read_bytes())
    journal.write_bytes(lines)
    return lines


def picture(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    found = {".": (b"", folder.stat().st_mtime_ns, folder.stat().st_ino)}
    for item in folder.iterdir():
        found[item.name] = (item.read_bytes(), item.stat().st_mtime_ns, item.stat().st_ino)
    return found


def sound(path: Path) -> None:
    with_journal(path)


def torn(path: Path) -> None:
    with_journal(path)
    with path.with_name(path.name + ".journal").open("ab") as journal:
        journal.write(b'{"crc":"0')


def stale(path: Path) -> None:
    with_journal(path)
    path.write_bytes((GOLDEN / "tier-index.json").read_bytes())


def damaged(path: Path) -> None:
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    path.write_bytes(b"{")


def empty(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("prepare", [sound, torn, stale, damaged, empty])
def test_a_reader_leaves_every_byte_and_time_as_it_was(
    path: Path, prepare: Callable[[Path], None]
) -> None:
    prepare(path)
    path.parent.chmod(0o500)
    before = picture(path.parent)
    with reader_of(path) as reader:
        reader.refresh()
        reader.snapshot_bytes()
        with pytest.raises(MetadataError, match="read only"):
            reader.compact()
    assert picture(path.parent) == before
    path.parent.chmod(0o700)


def test_a_reader_tells_what_it_passed_over(path: Path) -> None:
    torn(path)
    with reader_of(path) as reader:
        assert reader.report.torn_bytes == 9
        assert reader.report.replayed_lines == 2
        assert len(reader.segments(PLACE)) == 2
    stale(path)
    with reader_of(path) as reader:
        assert reader.report.stale_journal == path.with_name(path.name + ".journal")
        assert reader.report.replayed_lines == 0
        assert not reader.segments(PLACE)
    path.with_name(path.name + ".journal").unlink()
    damaged(path)
    with reader_of(path) as reader:
        assert reader.report.used_backup


def test_a_reader_needs_no_folder_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "later" / "tieredStoreMetadata.json"
    with reader_of(path) as reader:
        assert not reader.topics()
        assert not path.parent.exists()
        with JsonMetadataStore.open(path) as store:
            store.put(TOPIC)
            reader.refresh()
            assert reader.topics() == (TOPIC,)


@pytest.mark.parametrize("compacted", [False, True], ids=["new lines", "a new snapshot"])
def test_what_is_read_when_a_reader_is_interrupted_is_read_again(
    path: Path, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, after which a program may go on reading."""

    class Interrupting:
        def __enter__(self) -> None:
            raise KeyboardInterrupt

        def __exit__(self, *exception: object) -> None: ...

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        with reader_of(path) as reader:
            store.put(log_segment(1))
            if compacted:
                store.compact()
            with monkeypatch.context() as patch:
                patch.setattr(reader, "_tables_lock", Interrupting())
                with pytest.raises(KeyboardInterrupt):
                    reader.refresh()
            reader.refresh()
            assert len(reader.segments(PLACE)) == 2


def test_while_only_the_journal_grows_only_its_new_lines_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        with reader_of(path) as reader:
            with monkeypatch.context() as patch:
                patch.setattr(files, "load", None)  # no file is read as a whole
                for number in range(1, 5):
                    store.put(log_segment(number))
                    store.put_note("kind", "key", number)
                    reader.refresh()
                    reader.refresh()
                    assert len(reader.segments(PLACE)) == number + 1
                    assert reader.note("kind", "key") == number
            assert reader.snapshot_bytes() == store.snapshot_bytes()


def test_a_reader_follows_through_compaction_close_and_reopening(path: Path) -> None:
    with reader_of(path) as reader:
        for number in range(4):
            with JsonMetadataStore.open(path) as store:
                store.put(log_segment(10 * number))
                reader.refresh()
                assert reader.snapshot_bytes() == store.snapshot_bytes()
                store.compact()
                reader.refresh()
                assert reader.snapshot_bytes() == store.snapshot_bytes()
                store.put(log_segment(10 * number + 1))
                reader.refresh()
                assert reader.snapshot_bytes() == store.snapshot_bytes()
            reader.refresh()
            assert reader.snapshot_bytes() == path.read_bytes()


def test_a_compaction_to_the_same_bytes_is_no_trap(path: Path) -> None:
    with JsonMetadataStore.open(path) as store, reader_of(path) as reader:
        for number in range(3):
            store.put(log_segment(0, number))
            store.delete_segment(PLACE, log_segment(0).type, 0)
            store.put_note("kind", "key", number)
            store.compact()  # the snapshot has the same bytes
            store.put(log_segment(number))
            store.put(log_segment(7))
            reader.refresh()
            assert reader.snapshot_bytes() == store.snapshot_bytes()
            assert reader.notes("kind") == store.notes("kind")
            for row in store.segments(PLACE):
                store.delete_segment(PLACE, row.type, row.base_offset)


def test_a_reader_sees_what_rocketmq_writes(path: Path) -> None:
    with reader_of(path) as reader:
        path.write_bytes((GOLDEN / "tier-index.json").read_bytes())
        reader.refresh()
        assert reader.snapshot_bytes() == path.read_bytes()


def test_a_tail_that_a_writer_cut_is_not_missed(path: Path) -> None:
    lines = with_journal(path)
    journal = path.with_name(path.name + ".journal")
    with reader_of(path) as reader:
        first_two = lines[: lines.rindex(b"\n", 0, -1) + 1]
        os.truncate(journal, len(first_two))
        reader.refresh()
        assert [row.base_offset for row in reader.segments(PLACE)] == [0]


@pytest.mark.parametrize("bases", [[2], [1000], [2, 3]], ids=["as long", "longer", "two"])
def test_lines_in_place_of_one_that_a_writer_lost_are_not_missed(
    path: Path, bases: list[int]
) -> None:
    """The reader has seen a line that was not synced yet when the power failed."""
    lines = with_journal(path)
    journal = path.with_name(path.name + ".journal")
    with reader_of(path) as reader:
        assert [row.base_offset for row in reader.segments(PLACE)] == [0, 1]
        os.truncate(journal, lines.rindex(b"\n", 0, -1) + 1)
        with JsonMetadataStore.open(path) as store:
            for base in bases:
                store.put(log_segment(base))
            reader.refresh()
            assert [row.base_offset for row in reader.segments(PLACE)] == [0, *bases]
            assert reader.snapshot_bytes() == store.snapshot_bytes()


def test_a_refresh_that_fails_shows_what_was_seen_before_and_can_be_tried_again(
    path: Path,
) -> None:
    lines = with_journal(path)
    journal = path.with_name(path.name + ".journal")
    with reader_of(path) as reader:
        other = journal.with_name("other")
        other.write_bytes(lines[:100] + b"#" + lines[101:])
        other.replace(journal)
        for _ in range(2):
            with pytest.raises(MetadataError, match="damaged"):
                reader.refresh()
        assert len(reader.segments(PLACE)) == 2
        journal.write_bytes(lines)
        reader.refresh()
        assert len(reader.segments(PLACE)) == 2
        path.write_bytes(b"")
        path.with_name(path.name + ".bak").unlink()
        with pytest.raises(MetadataError):
            reader.refresh()


# -- a reader in the middle of a compaction ---------------------------------------------------


@pytest.mark.parametrize("has_journal", [False, True])
@pytest.mark.parametrize("open_at", [reader_of, ReadCopy.open])
def test_a_reader_whose_files_go_says_so_and_sees_no_empty_catalogue(
    path: Path, open_at: Callable[[Path], MetadataStore], has_journal: bool
) -> None:
    if has_journal:
        with_journal(path)
    elsewhere = path.parent.with_name("elsewhere")
    with closing(open_at(path)) as reader:
        before = reader.segments()
        path.parent.rename(elsewhere)
        for _ in range(2):
            with pytest.raises(MetadataError, match="its files are gone"):
                reader.refresh()
            assert reader.segments() == before != []
        elsewhere.rename(path.parent)
        reader.refresh()
        assert reader.segments() == before


def test_a_reader_that_a_compaction_overtakes_reads_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer compacts and commits between any two of its reads, and it never sees a mixture."""
    read_bytes = Path.read_bytes
    with JsonMetadataStore.open(path) as store:
        for overtaken_at in range(1, 5):
            reads = 0

            def overtaken(file: Path) -> bytes:
                nonlocal reads
                data = read_bytes(file)
                reads += 1
                if reads == overtaken_at:  # noqa: B023
                    with monkeypatch.context() as inner:
                        inner.setattr(Path, "read_bytes", read_bytes)
                        store.put(log_segment(overtaken_at))  # noqa: B023
                        store.put_note("kind", "key", overtaken_at)  # noqa: B023
                        store.compact()
                        store.put(log_segment(100 + overtaken_at))  # noqa: B023
                return data

            store.put(log_segment(50 + overtaken_at))
            with monkeypatch.context() as patch:
                patch.setattr(Path, "read_bytes", overtaken)
                with reader_of(path) as reader:
                    seen = reader.snapshot_bytes(), reader.notes("kind")
            assert seen == (store.snapshot_bytes(), store.notes("kind"))


def test_a_reader_gives_up_on_files_that_never_rest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = 0

    def restless(files: CatalogueFiles, read: Callable[[], bytes | None]) -> object:
        nonlocal loads
        loads += 1
        shutil.copy(path, path.with_name("copy"))
        path.with_name("copy").replace(path)
        return load(files, read)

    monkeypatch.setattr(files, "load", restless)
    with pytest.raises(MetadataError, match="8 times"):
        reader_of(path)
    assert loads == files.LOADS_MAX


@pytest.mark.parametrize("moving", [True, False])
def test_what_looks_damaged_is_read_again_only_if_somebody_is_writing(
    path: Path, monkeypatch: pytest.MonkeyPatch, moving: bool
) -> None:
    loads = 0

    def confused(files: CatalogueFiles, read: Callable[[], bytes | None]) -> object:
        nonlocal loads
        loads += 1
        if loads > 1:
            return load(files, read)
        if moving:
            shutil.copy(path, path.with_name("copy"))
            path.with_name("copy").replace(path)
        raise MetadataError(str(path), "looks damaged")

    monkeypatch.setattr(files, "load", confused)
    if moving:
        reader_of(path).close()
        assert loads == 2
    else:
        with pytest.raises(MetadataError, match="looks damaged"):
            reader_of(path)
        assert loads == 1
