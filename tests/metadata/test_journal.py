"""The journal: cut at every byte, a bit flipped in every byte, and failed writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest

from tieredstore.driver.durable import write_atomically
from tieredstore.driver.metadata import Change, DeleteSegment, Put, PutNote
from tieredstore.metadata import JsonMetadataStore, files, journal
from tieredstore.metadata.journal import SnapshotName, commit_line, compact_line, header_line
from tieredstore.model.errors import MetadataError, StoreClosedError
from tieredstore.model.values import QueueRecord, SegmentType, TopicRecord
from tieredstore.testing.metadata_contract import log_segment

GOLDEN = Path(__file__).parents[1] / "golden" / "metadata"
BATCHES: list[list[Change]] = [
    [Put(log_segment(0, 1)), Put(QueueRecord(broker_name="b", topic="T", queue_id=1))],
    [Put(TopicRecord(topic="ü", topic_id=9)), PutNote("kind", "key", {"crc": '{"crc":"'})],
    [DeleteSegment("broker-a/Orders/0", SegmentType.COMMIT_LOG, 0)],
    [Put(log_segment(7, 3))],
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_bytes((GOLDEN / "tier-index.json").read_bytes())
    return path


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


def state(store: JsonMetadataStore) -> tuple[bytes, object]:
    return store.snapshot_bytes(), store.notes("kind")


def written(path: Path) -> tuple[bytes, list[int], list[tuple[bytes, object]]]:
    """The journal of BATCHES, where its lines end, and the state after 0, 1, … of them."""
    ends = []
    store = JsonMetadataStore.open(path)
    states = [state(store)]
    for batch in BATCHES:
        store.apply(batch)
        ends.append(journal_of(path).stat().st_size)
        states.append(state(store))
    abandon(store)
    return journal_of(path).read_bytes(), ends, states


def abandon(store: JsonMetadataStore) -> None:
    """Release the files without writing anything, as in a crash."""
    with mock.patch("tieredstore.metadata.files.CatalogueWriter.compact"):
        store.close()


def test_a_journal_cut_at_any_byte_opens_to_its_last_whole_line(path: Path) -> None:
    journal, ends, states = written(path)
    header_end = journal.index(b"\n") + 1
    for length in range(len(journal) + 1):
        journal_of(path).write_bytes(journal[:length])
        whole = sum(end <= length for end in ends)
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert state(reader) == states[whole]
        store = JsonMetadataStore.open(path)
        assert state(store) == states[whole]
        assert store.report.replayed_lines == whole
        lines_end = max(end for end in (0, header_end, *ends) if end <= length)
        assert store.report.torn_bytes == length - lines_end
        if whole:
            assert journal_of(path).read_bytes() == journal[: ends[whole - 1]]
        else:
            assert not journal_of(path).exists()
        abandon(store)


def test_writing_goes_on_behind_the_cut(path: Path) -> None:
    journal, ends, _ = written(path)
    snapshot = path.read_bytes()
    for length in (0, 30, ends[0] - 1, ends[0], ends[0] + 5, len(journal) - 1, len(journal)):
        path.write_bytes(snapshot)
        path.with_name(path.name + ".notes").unlink(missing_ok=True)
        journal_of(path).write_bytes(journal[:length])
        store = JsonMetadataStore.open(path)
        store.put(log_segment(99))
        expected = state(store)
        abandon(store)
        with JsonMetadataStore.open(path) as store:
            assert state(store) == expected
        with JsonMetadataStore.open(path) as store:
            assert state(store) == expected


def test_a_flipped_bit_is_noticed(path: Path) -> None:
    journal, ends, states = written(path)
    last = ends[-2]
    for at in range(len(journal)):
        damaged = bytearray(journal)
        damaged[at] ^= 1 << at % 8
        journal_of(path).write_bytes(damaged)
        if at < last:  # whole lines follow, so nothing is cut or guessed
            with pytest.raises(MetadataError, match=r"journal: damaged at byte \d+"):
                JsonMetadataStore.open(path)
            assert journal_of(path).read_bytes() == damaged
        else:  # the last line counts as torn, as a crash may leave it
            store = JsonMetadataStore.open(path)
            assert state(store) == states[-2]
            assert store.report.torn_bytes == len(journal) - last
            abandon(store)


def test_damage_is_found_at_its_byte(path: Path) -> None:
    journal, ends, _ = written(path)
    damaged = journal[: ends[0] + 30] + b"#" + journal[ends[0] + 31 :]
    journal_of(path).write_bytes(damaged)
    for read_only in (False, True):
        with pytest.raises(MetadataError, match=f"damaged at byte {ends[0]}: valid lines follow"):
            JsonMetadataStore.open(path, read_only=read_only)


@pytest.mark.parametrize("tail", [b"\0" * 5_000, b"{", b"\n", b"\n\n\n", b'{"crc":"00000000",}\n'])
def test_a_torn_tail_is_cut_whatever_it_is(path: Path, tail: bytes) -> None:
    journal, _, states = written(path)
    journal_of(path).write_bytes(journal + tail)
    with JsonMetadataStore.open(path) as store:
        assert state(store) == states[-1]
        assert store.report.torn_bytes == len(tail)
        assert journal_of(path).read_bytes() == journal


@pytest.mark.parametrize(
    "lines",
    [
        [commit_line(1, [])],
        [header_line(None), commit_line(2, [])],
        [header_line(None), header_line(None)],
        [header_line(None), commit_line(1, []), commit_line(1, [])],
        [header_line(None), commit_line(1, [b'{"put":"planet"}'])],
        [header_line(None), commit_line(1, [b'{"put":"segment","row":{"size":-1}}'])],
        [header_line(None), commit_line(1, [b"]"])],
        [header_line(None), commit_line(1, [b"[" * 100_000])],
        [
            header_line(None).replace(b'"format":1', b'"format":1')[:0],
            compact_line(0, SnapshotName.of(b"")),
        ],
    ],
    ids=range(9),
)
def test_sound_lines_that_make_no_sense_are_an_error(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "catalogue"
    journal_of(path).write_bytes(b"".join(lines))
    with pytest.raises(MetadataError, match="line at byte"):
        JsonMetadataStore.open(path)
    assert journal_of(path).read_bytes() == b"".join(lines)


def test_a_line_below_makes_the_name_of_the_next_snapshot_void(tmp_path: Path) -> None:
    """The name covers the lines above it; the snapshot does not hold the line below."""
    path = tmp_path / "catalogue"
    with JsonMetadataStore.open(path) as store:
        store.compact()
    name = SnapshotName.of(path.read_bytes())
    lines = [header_line(None), commit_line(1, []), compact_line(2, name)]
    journal_of(path).write_bytes(b"".join(lines))
    with JsonMetadataStore.open(path) as store:
        assert store.report.stale_journal is None
        assert not journal_of(path).exists()
    journal_of(path).write_bytes(b"".join([*lines, commit_line(3, [])]))
    with JsonMetadataStore.open(path) as store:
        assert store.report.stale_journal is not None


# -- writes that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_after_a_failed_write_nothing_is_written_until_the_store_is_reopened(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    store = JsonMetadataStore.open(path)
    store.put(log_segment(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(MetadataError, match="the disk is broken"):
            store.put(log_segment(1))
    for attempt in (lambda: store.put(log_segment(2)), lambda: store.add_topic("A"), store.compact):
        with pytest.raises(MetadataError, match="open it again"):
            attempt()
    assert [row.base_offset for row in store.segments("broker-a/Orders/0")] == [0]
    store.close()
    with pytest.raises(StoreClosedError):
        store.put(log_segment(3))
    with JsonMetadataStore.open(path) as store:
        # The outcome was unknown; in this case the line was taken back.
        assert [row.base_offset for row in store.segments("broker-a/Orders/0")] == [0]
        store.put(log_segment(4))


@pytest.mark.parametrize("before", [0, 1], ids=["the first line", "a later line"])
def test_a_full_disk_stops_the_catalogue_only_while_it_is_full(
    path: Path, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line was never whole, so there is nothing that a restart could find out."""
    pwrite = os.pwrite
    taken: list[int] = []

    def full(descriptor: int, data: bytes, position: int) -> int:
        """A disk that takes nine bytes of a line and no more."""
        if taken and position == taken[-1] + 9:
            raise OSError(errno.ENOSPC, "no space left")
        taken.append(position)
        return pwrite(descriptor, data[:9], position)

    with JsonMetadataStore.open(path) as store:
        for number in range(before):
            store.put(log_segment(number))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            for _ in range(2):
                with pytest.raises(MetadataError, match="no space left"):
                    store.put(log_segment(7))
                assert len(store.segments("broker-a/Orders/0")) == before
        store.put(log_segment(8))
        expected = state(store)
        with JsonMetadataStore.open(path, read_only=True) as reader:
            assert state(reader) == expected
            assert reader.report.torn_bytes == 0
    with JsonMetadataStore.open(path) as store:
        assert state(store) == expected


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.EIO])
def test_a_folder_that_takes_no_file_stops_the_catalogue_only_meanwhile(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no journal yet, as after each compaction."""

    def refused(*_: object) -> None:
        raise OSError(code, "not now")

    with JsonMetadataStore.open(path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_atomically", refused)
            for _ in range(2):
                with pytest.raises(MetadataError, match="not now"):
                    store.put(log_segment(7))
        store.put(log_segment(8))
        expected = state(store)
        assert len(store.segments("broker-a/Orders/0")) == 1
    with JsonMetadataStore.open(path) as store:
        assert state(store) == expected


def test_a_short_write_is_finished(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
            store.put(log_segment(1))
        expected = state(store)
    with JsonMetadataStore.open(path) as store:
        assert state(store) == expected


def test_a_full_disk_during_compaction_costs_no_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pwrite = os.pwrite

    def full_for_files(descriptor: int, data: bytes, position: int) -> int:
        if len(data) > 500:
            raise OSError(errno.ENOSPC, "no space left")
        return pwrite(descriptor, data, position)

    with JsonMetadataStore.open(path, journal_bytes_max=1_000) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full_for_files)
            for number in range(40):
                store.put(log_segment(number))
            with pytest.raises(MetadataError, match="no space left"):
                store.compact()
        # It does not try at every commit: each attempt waits until the journal is twice as long.
        assert 2 <= caplog.text.count("not compacted") <= 6
        assert len(store.segments("broker-a/Orders/0")) == 40
    with JsonMetadataStore.open(path) as store:
        assert len(store.segments("broker-a/Orders/0")) == 40


def test_a_backup_that_finds_no_room_costs_no_commit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By then the new snapshot is durable, and all that the next commit needs."""

    def no_room_for_a_backup(target: Path, blocks: Iterable[bytes]) -> None:
        if target.suffix == ".bak":
            raise OSError(errno.ENOSPC, "no space left")
        write_atomically(target, blocks)

    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomically", no_room_for_a_backup)
            store.compact()
        assert "no space left" in caplog.text
        store.put(log_segment(1))
        expected = state(store)
    assert path.with_name(f"{path.name}.bak").read_bytes() == path.read_bytes()
    with JsonMetadataStore.open(path) as store:
        assert state(store) == expected


def test_close_survives_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    store = JsonMetadataStore.open(path)
    store.put(log_segment(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        store.close()
    with JsonMetadataStore.open(path) as store:
        assert store.report.replayed_lines == 1
        assert len(store.segments("broker-a/Orders/0")) == 1
