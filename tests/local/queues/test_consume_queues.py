"""All queues of a store: names, batches over many queues, flushing, deleting, memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.local.consume_queues import ConsumeQueues, is_topic, queue_directory, queue_number
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.errors import BackendRefusedError, PositionMismatchError
from tieredstore.model.values import QueueKey
from tieredstore.testing.disk import ForgetfulDisk

FILE_BYTES = 200
Row = tuple[str, int, int, int]

ODD_TOPICS = [
    "%RETRY%x",
    "%LMQ%a-b",
    "with space",
    " ",
    "标签",
    "😀",
    "a.b",
    "..a",
    "T" * 255,
    "-1",
]
BAD_TOPICS = ["", ".", "..", "../x", "/x", "a/b", "a\x00b", "T" * 256, "字" * 86, "\udcff"]


def opened(root: Path, *, open_max: int = 4) -> ConsumeQueues:
    queues = ConsumeQueues(root, file_bytes=FILE_BYTES, files=MappedFiles(open_max=open_max))
    queues.load()
    return queues


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "consumequeue"


def put(queues: ConsumeQueues, rows: Sequence[Row]) -> int:
    """Rows of topic, queue number, queue offset and log offset; records have 100 bytes."""
    topics, queue_ids, queue_offsets, log_offsets = (list(one) for one in zip(*rows, strict=True))
    count = len(rows)
    return queues.put_batch(
        [str(topic) for topic in topics],
        [int(number) for number in queue_ids],
        [int(offset) for offset in queue_offsets],
        [int(offset) for offset in log_offsets],
        [100] * count,
        [int(offset) for offset in queue_offsets],
    )


def log_offsets(queues: ConsumeQueues, topic: str, queue_id: int = 0) -> list[int]:
    queue = queues.queue(topic, queue_id)
    assert queue is not None
    units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
    found: list[int] = units.log_offsets.tolist()
    return found


def test_a_store_without_queues_is_empty(root: Path) -> None:
    queues = opened(root)
    assert queues.queues() == []
    assert queues.next_offsets() == {}
    assert queues.max_log_end == 0
    assert queues.flush() == queues.truncate(0) == queues.delete_before(10) == 0
    queues.close()
    assert not root.exists()


def test_a_batch_is_put_queue_by_queue_in_its_order(root: Path) -> None:
    rows = [(f"T{n % 3}", n % 2, n // 6, 100 * n) for n in range(60)]
    queues = opened(root)
    assert put(queues, rows) == 60
    for seen in (queues, opened(root)):
        assert seen.queues() == [QueueKey(f"T{t}", q) for t in range(3) for q in range(2)]
        for topic, queue_id in seen.queues():
            want = [row[3] for row in rows if row[:2] == (topic, queue_id)]
            assert log_offsets(seen, topic, queue_id) == want
        assert seen.next_offsets() == dict.fromkeys(seen.queues(), 10)
        assert seen.max_log_end == 6000
        seen.close()


def test_a_batch_in_which_messages_repeat_is_put_once(root: Path) -> None:
    queues = opened(root)
    assert put(queues, [("T", 0, 0, 0), ("T", 0, 1, 100), ("T", 0, 0, 0), ("T", 0, 1, 100)]) == 2
    assert put(queues, [("T", 0, 1, 100), ("T", 0, 2, 200)]) == 1
    assert log_offsets(queues, "T") == [0, 100, 200]


def test_a_queue_that_refuses_stops_no_other(root: Path) -> None:
    queues = opened(root)
    put(queues, [("A", 0, 0, 0), ("B", 0, 0, 100)])
    rows: list[Row] = [("A", 0, 5, 600), ("../x", 0, 0, 700), ("B", 0, 1, 800), ("C", 0, 0, 900)]
    with pytest.raises(PositionMismatchError):
        put(queues, rows)
    assert log_offsets(queues, "A") == [0]
    assert log_offsets(queues, "B") == [100, 800]
    assert log_offsets(queues, "C") == [900]


@pytest.mark.parametrize("topic", ODD_TOPICS)
def test_topics_of_any_letters_are_directories(root: Path, topic: str) -> None:
    queues = opened(root)
    put(queues, [(topic, 7, 0, 0)])
    assert (root / topic / "7" / f"{0:020d}").is_file()
    again = opened(root)
    assert again.queues() == [QueueKey(topic, 7)]
    assert again.delete_topics([topic]) == [QueueKey(topic, 7)]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_names_that_would_leave_the_root_are_refused(root: Path, topic: str) -> None:
    queues = opened(root)
    with pytest.raises(BackendRefusedError):
        put(queues, [(topic, 0, 0, 0)])
    assert queues.queue(topic, 0) is None
    assert queues.delete_topics([topic]) == []
    assert not root.exists()


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_numbers_that_are_no_queue_are_refused(root: Path, queue_id: int) -> None:
    with pytest.raises(BackendRefusedError):
        put(opened(root), [("T", queue_id, 0, 0)])


@given(st.text(max_size=6))
def test_a_topic_is_one_directory_below_the_root(name: str) -> None:
    root = Path("/somewhere/consumequeue")
    if is_topic(name):
        directory = queue_directory(root, name, 3)
        assert directory.parent.parent == root
        assert os.path.normpath(directory) == str(directory)
    else:
        with pytest.raises(BackendRefusedError):
            queue_directory(root, name, 3)


@pytest.mark.parametrize(
    "name", ["", "x", "-1", "01", "1.0", " 1", "١", "99999999999", "2147483648"]
)
def test_a_directory_of_another_name_is_no_queue(root: Path, name: str) -> None:
    assert queue_number(name) is None
    if name:
        (root / "T" / name).mkdir(parents=True)
        (root / "file").touch()
        (root / "T" / "file").touch()
        (root / "T" / "12").touch()
    assert opened(root).queues() == []


def test_an_unknown_queue_is_none(root: Path) -> None:
    queues = opened(root)
    put(queues, [("T", 0, 0, 0)])
    for topic, queue_id in (("T", 1), ("X", 0), ("T", -1), ("..", 0)):
        assert queues.queue(topic, queue_id) is None
        assert queues.min_offset(topic, queue_id) is None
        assert queues.max_offset(topic, queue_id) is None
    assert (queues.min_offset("T", 0), queues.max_offset("T", 0)) == (0, 1)


def test_only_what_was_put_is_flushed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = opened(root, open_max=100)
    put(queues, [(f"T{n}", 0, 0, 100 * n) for n in range(10)])
    assert queues.flush() == 10
    assert queues.flush() == 0
    put(queues, [("T3", 0, 1, 2000), ("T4", 0, 1, 2100)])
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
    )
    assert queues.flush() == 2
    assert [Path(path).parts[-3] for path in synced] == ["T3", "T4"]


def test_a_flush_that_failed_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = opened(root)
    put(queues, [(f"T{n}", 0, 0, 100 * n) for n in range(3)])
    real = queues.queue("T1", 0)
    assert real is not None

    def refuse() -> None:
        raise BackendRefusedError("T1", "fdatasync", "no")

    with monkeypatch.context() as patch:
        patch.setattr(real, "flush", refuse)
        with pytest.raises(BackendRefusedError):
            queues.flush()
    assert queues.flush() == 2


def test_cuts_and_minima_reach_all_queues(root: Path) -> None:
    queues = opened(root)
    put(queues, [(f"T{n % 2}", 0, n // 2, 100 * n) for n in range(50)])
    assert queues.truncate(4500) == 5
    assert queues.max_log_end == 4500
    queues.correct_min_offsets(1000)
    assert [queues.min_offset(f"T{n}", 0) for n in range(2)] == [5, 5]
    assert queues.delete_before(2200) == 2
    assert [queues.min_offset(f"T{n}", 0) for n in range(2)] == [11, 11]
    assert opened(root).next_offsets() == {QueueKey("T0", 0): 23, QueueKey("T1", 0): 22}


def test_deleted_topics_are_gone_and_may_begin_anew(root: Path) -> None:
    queues = opened(root)
    put(queues, [("A", 0, 0, 0), ("A", 1, 0, 100), ("B", 0, 0, 200)])
    assert queues.delete_topics(["A", "X"]) == [QueueKey("A", 0), QueueKey("A", 1)]
    assert [path.name for path in root.iterdir()] == ["B"]
    assert queues.queues() == opened(root).queues() == [QueueKey("B", 0)]
    queues.flush()
    put(queues, [("A", 0, 3, 300)])
    assert (queues.min_offset("A", 0), queues.max_offset("A", 0)) == (3, 4)


def test_a_deleted_topic_is_durably_gone(root: Path) -> None:
    queues = opened(root)
    put(queues, [("A", 0, 0, 0)])
    with ForgetfulDisk(root) as disk:
        queues.delete_topics(["A"])
    assert not (disk.synced(root.with_name("synced")) / "A").exists()


def test_what_lies_beside_the_queues_is_not_touched(root: Path) -> None:
    others = [root.parent / "consumequeue_ext", root.parent / "batchconsumequeue"]
    for other in others:
        (other / "A" / "0").mkdir(parents=True)
        (other / "A" / "0" / f"{0:020d}").write_bytes(b"x" * 46)
    queues = opened(root)
    put(queues, [("A", 0, 0, 0)])
    queues.truncate(0)
    queues.delete_topics(["A"])
    queues.destroy()
    for other in others:
        assert (other / "A" / "0" / f"{0:020d}").read_bytes() == b"x" * 46


def test_destroying_leaves_no_queue(root: Path) -> None:
    queues = opened(root)
    put(queues, [("A", 0, 0, 0), ("B", 3, 0, 100)])
    queues.destroy()
    assert queues.queues() == []
    assert list(root.iterdir()) == []


def test_opening_many_queues_leaves_no_file_open(root: Path) -> None:
    queues = opened(root)
    put(queues, [(f"T{n}", 0, 0, 100 * n) for n in range(200)])
    queues.close()
    before = len(os.listdir("/proc/self/fd"))
    files = MappedFiles(open_max=8)
    again = ConsumeQueues(root, file_bytes=FILE_BYTES, files=files)
    again.load()
    assert len(again.next_offsets()) == 200
    assert files.open_count == 0
    assert len(os.listdir("/proc/self/fd")) == before
    put(again, [(f"T{n}", 0, 1, 20_000 + 100 * n) for n in range(200)])
    assert files.open_count <= 8
    again.close()
