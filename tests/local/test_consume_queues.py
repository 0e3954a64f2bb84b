"""All queues of a store: batches over many, Java's own, and topics that are deleted."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, contents, expected, files_under, sha256
from tests.index.store_kit import open_below
from tests.local.store_audit import check_agreement, crash, opened, parts_of
from tieredstore.codec.message import decode_message
from tieredstore.codec.queue_unit import encode_units
from tieredstore.local.consume_queues import (
    DELETED_FILE,
    Begin,
    ConsumeQueues,
    DeletedTopics,
    is_topic,
    queue_directory,
    queue_number,
    remove_topic_directory,
)
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.errors import BackendRefusedError, MetadataError, PositionMismatchError
from tieredstore.model.messages import Message
from tieredstore.model.values import INT32_MAX, Boundary, GetStatus, QueueKey
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import TOPIC, a_body, a_message

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


def queues_at(root: Path, *, open_max: int = 4) -> ConsumeQueues:
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
    queues = queues_at(root)
    assert queues.queues() == []
    assert queues.next_offsets() == {}
    assert queues.max_log_end == 0
    assert queues.flush() == queues.truncate(0) == queues.delete_before(10) == 0
    queues.close()
    assert not root.exists()


def test_a_batch_is_put_queue_by_queue_in_its_order(root: Path) -> None:
    rows = [(f"T{n % 3}", n % 2, n // 6, 100 * n) for n in range(60)]
    queues = queues_at(root)
    assert put(queues, rows) == 60
    for seen in (queues, queues_at(root)):
        assert seen.queues() == [QueueKey(f"T{t}", q) for t in range(3) for q in range(2)]
        for topic, queue_id in seen.queues():
            want = [row[3] for row in rows if row[:2] == (topic, queue_id)]
            assert log_offsets(seen, topic, queue_id) == want
        assert seen.next_offsets() == dict.fromkeys(seen.queues(), 10)
        assert seen.max_log_end == 6000
        seen.close()


def test_a_batch_in_which_messages_repeat_is_put_once(root: Path) -> None:
    queues = queues_at(root)
    assert put(queues, [("T", 0, 0, 0), ("T", 0, 1, 100), ("T", 0, 0, 0), ("T", 0, 1, 100)]) == 2
    assert put(queues, [("T", 0, 1, 100), ("T", 0, 2, 200)]) == 1
    assert log_offsets(queues, "T") == [0, 100, 200]


def test_a_queue_that_refuses_stops_no_other(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("A", 0, 0, 0), ("B", 0, 0, 100)])
    rows: list[Row] = [("A", 0, 5, 600), ("../x", 0, 0, 700), ("B", 0, 1, 800), ("C", 0, 0, 900)]
    with pytest.raises(PositionMismatchError):
        put(queues, rows)
    assert log_offsets(queues, "A") == [0]
    assert log_offsets(queues, "B") == [100, 800]
    assert log_offsets(queues, "C") == [900]


@pytest.mark.parametrize("topic", ODD_TOPICS)
def test_topics_of_any_letters_are_directories(root: Path, topic: str) -> None:
    queues = queues_at(root)
    put(queues, [(topic, 7, 0, 0)])
    assert (root / topic / "7" / f"{0:020d}").is_file()
    again = queues_at(root)
    assert again.queues() == [QueueKey(topic, 7)]
    assert again.delete_topics([topic]) == [QueueKey(topic, 7)]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("topic", BAD_TOPICS)
def test_names_that_would_leave_the_root_are_refused(root: Path, topic: str) -> None:
    queues = queues_at(root)
    with pytest.raises(BackendRefusedError):
        put(queues, [(topic, 0, 0, 0)])
    assert queues.queue(topic, 0) is None
    assert queues.delete_topics([topic]) == []
    assert not root.exists()


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_numbers_that_are_no_queue_are_refused(root: Path, queue_id: int) -> None:
    with pytest.raises(BackendRefusedError):
        put(queues_at(root), [("T", queue_id, 0, 0)])


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
    assert queues_at(root).queues() == []


def test_whatever_lies_among_the_topics_each_of_them_is_found(root: Path) -> None:
    topics = [f"T{number}" for number in range(4)]
    root.mkdir()
    for number in range(40):
        (root / f"note{number}").write_bytes(b"")
        if number % 10 == 5:
            put(queues_at(root), [(topics[number // 10], 0, 0, 100 * number)])
    assert queues_at(root).queues() == [QueueKey(topic, 0) for topic in topics]


def test_nothing_stays_open_of_queues_that_are_closed(root: Path) -> None:
    files = MappedFiles(open_max=8)
    queues = ConsumeQueues(root, file_bytes=FILE_BYTES, files=files)
    put(queues, [("A", 0, 0, 0), ("A", 1, 0, 100), ("B", 0, 0, 200)])
    assert files.open_count == 3
    queues.close()
    assert files.open_count == 0


def test_a_message_that_ended_where_a_queue_was_begun_is_none_of_it(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("A", 0, 7, 900)])
    queue = queues.queue("A", 0)
    assert not Begin(7, log_end=1000).has_messages(queue)
    assert Begin(7, log_end=999).has_messages(queue)
    assert not Begin(8, log_end=999).has_messages(queue)
    assert not Begin(0, log_end=0).has_messages(None)


def test_an_unknown_queue_is_none(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("T", 0, 0, 0)])
    for topic, queue_id in (("T", 1), ("X", 0), ("T", -1), ("..", 0)):
        assert queues.queue(topic, queue_id) is None
        assert queues.min_offset(topic, queue_id) is None
        assert queues.max_offset(topic, queue_id) is None
    assert (queues.min_offset("T", 0), queues.max_offset("T", 0)) == (0, 1)


def test_only_what_was_put_is_flushed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = queues_at(root, open_max=100)
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
    queues = queues_at(root)
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
    queues = queues_at(root)
    put(queues, [(f"T{n % 2}", 0, n // 2, 100 * n) for n in range(50)])
    assert queues.truncate(4500) == 5
    assert queues.max_log_end == 4500
    queues.correct_min_offsets(1000)
    assert [queues.min_offset(f"T{n}", 0) for n in range(2)] == [5, 5]
    assert queues.delete_before(2200) == 2
    assert [queues.min_offset(f"T{n}", 0) for n in range(2)] == [11, 11]
    assert queues_at(root).next_offsets() == {QueueKey("T0", 0): 23, QueueKey("T1", 0): 22}


def test_deleted_topics_are_gone_and_may_begin_anew(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("A", 0, 0, 0), ("A", 1, 0, 100), ("B", 0, 0, 200)])
    assert queues.delete_topics(["A", "X"]) == [QueueKey("A", 0), QueueKey("A", 1)]
    assert [path.name for path in root.iterdir()] == ["B"]
    assert queues.queues() == queues_at(root).queues() == [QueueKey("B", 0)]
    queues.flush()
    put(queues, [("A", 0, 3, 300)])
    assert (queues.min_offset("A", 0), queues.max_offset("A", 0)) == (3, 4)


def test_a_deleted_topic_is_durably_gone(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("A", 0, 0, 0)])
    with ForgetfulDisk(root) as disk:
        queues.delete_topics(["A"])
    assert not (disk.synced(root.with_name("synced")) / "A").exists()


def test_what_lies_beside_the_queues_is_not_touched(root: Path) -> None:
    others = [root.parent / "consumequeue_ext", root.parent / "batchconsumequeue"]
    for other in others:
        (other / "A" / "0").mkdir(parents=True)
        (other / "A" / "0" / f"{0:020d}").write_bytes(b"x" * 46)
    queues = queues_at(root)
    put(queues, [("A", 0, 0, 0)])
    queues.truncate(0)
    queues.delete_topics(["A"])
    queues.destroy()
    for other in others:
        assert (other / "A" / "0" / f"{0:020d}").read_bytes() == b"x" * 46


def test_destroying_leaves_no_queue(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [("A", 0, 0, 0), ("B", 3, 0, 100)])
    queues.destroy()
    assert queues.queues() == []
    assert list(root.iterdir()) == []


def test_opening_many_queues_leaves_no_file_open(root: Path) -> None:
    queues = queues_at(root)
    put(queues, [(f"T{n}", 0, 0, 100 * n) for n in range(200)])
    queues.close()
    files = MappedFiles(open_max=8)
    again = ConsumeQueues(root, file_bytes=FILE_BYTES, files=files)
    again.load()
    assert len(again.next_offsets()) == 200
    assert files.open_count == 0
    assert not open_below(root)
    put(again, [(f"T{n}", 0, 1, 20_000 + 100 * n) for n in range(200)])
    assert files.open_count <= 8
    again.close()


GOLDEN_FILE_BYTES = 400
BATCHES = [1, 7, 64, 1000]


def golden_queues_at(root: Path) -> ConsumeQueues:
    queues = ConsumeQueues(root, file_bytes=GOLDEN_FILE_BYTES, files=MappedFiles())
    queues.load()
    return queues


def state_of(folder: str) -> dict[str, Any]:
    state: dict[str, Any] = expected(f"{folder}.expect-state.json")
    return state


def queue_rows() -> list[dict[str, Any]]:
    return [row for row in expected("local-clean.expect-messages.json") if row["inConsumeQueue"]]


def put_rows(queues: ConsumeQueues, rows: list[dict[str, Any]]) -> int:
    return queues.put_batch(
        *[
            [row[name] for row in rows]
            for name in (
                "topic",
                "queueId",
                "queueOffset",
                "physicalOffset",
                "size",
                "tagsCode",
            )
        ]
    )


def units_sha256(queues: ConsumeQueues, key: QueueKey) -> str:
    queue = queues.queue(*key)
    assert queue is not None
    units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
    return sha256(
        encode_units(
            log_offsets=units.log_offsets,
            message_bytes=units.message_bytes,
            tags_codes=units.tags_codes,
        )
    )


def check_against(queues: ConsumeQueues, rows: list[dict[str, Any]]) -> None:
    assert queues.queues() == sorted(QueueKey(row["topic"], row["queueId"]) for row in rows)
    for row in rows:
        key = QueueKey(row["topic"], row["queueId"])
        queue = queues.queue(*key)
        assert queue is not None
        assert queue.min_offset == row["minOffset"], row
        assert queue.max_offset == row["maxOffset"], row
        assert queue.last_log_end == row["maxPhysicOffset"], row
        assert queue.file_count * GOLDEN_FILE_BYTES == row["totalSize"], row
        assert units_sha256(queues, key) == row["unitsSha256"], row


@pytest.mark.parametrize("batch", BATCHES)
def test_queues_built_again_from_the_log_have_javas_bytes(tmp_path: Path, batch: int) -> None:
    queues = golden_queues_at(tmp_path / "consumequeue")
    rows = queue_rows()
    for start in range(0, len(rows), batch):
        put_rows(queues, rows[start : start + batch])
    queues.flush()
    queues.close()
    assert contents(tmp_path / "consumequeue") == contents(GOLDEN / "local-clean/consumequeue")


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_a_store_of_java_has_the_offsets_that_java_says(tmp_path: Path, folder: str) -> None:
    shutil.copytree(GOLDEN / folder / "consumequeue", tmp_path / "consumequeue")
    state = state_of(folder)
    queues = golden_queues_at(tmp_path / "consumequeue")
    queues.correct_min_offsets(state["store"]["minPhyOffset"])
    check_against(queues, state["queues"])
    assert queues.max_log_end == state["store"]["maxPhyOffset"]
    queues.close()
    assert contents(tmp_path / "consumequeue") == contents(GOLDEN / folder / "consumequeue")


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_minimum_and_maximum_are_what_java_answers(folder: str) -> None:
    queues = golden_queues_at(GOLDEN / folder / "consumequeue")
    queues.correct_min_offsets(state_of(folder)["store"]["minPhyOffset"])
    asked = 0
    for row in expected(f"{folder}.expect-queries.json"):
        query = row["query"]
        if query["op"] in ("minOffset", "maxOffset"):
            ask = queues.min_offset if query["op"] == "minOffset" else queues.max_offset
            answer = ask(query["topic"], query["queueId"])
            # Java creates a queue when it is asked about one; we answer None.
            assert (answer or 0) == row["result"]["offset"], row
            asked += 1
    assert asked > 20
    queues.close()


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_the_offset_of_a_time_is_what_java_answers(folder: str) -> None:
    state = state_of(folder)
    times = {
        row["physicalOffset"]: row["storeTimestamp"]
        for row in expected("local-clean.expect-messages.json")
    }
    queues = golden_queues_at(GOLDEN / folder / "consumequeue")
    for row in expected(f"{folder}.expect-queries.json"):
        query = row["query"]
        queue = queues.queue(query.get("topic", ""), query.get("queueId", 0))
        if query["op"] != "offsetByTime" or queue is None:
            continue
        queue.correct_min_offset(state["store"]["minPhyOffset"])
        answer = queue.offset_by_time(
            query["timestamp"],
            Boundary[query["boundary"]],
            store_time=lambda log_offset, message_bytes: times[log_offset],
        )
        assert answer == row["result"]["offset"], row
    queues.close()


def test_expiring_the_clean_store_leaves_the_files_of_the_expired_one(tmp_path: Path) -> None:
    root = tmp_path / "consumequeue"
    shutil.copytree(GOLDEN / "local-clean/consumequeue", root)
    state = state_of("local-expired")
    queues = golden_queues_at(root)
    queues.delete_before(state["store"]["minPhyOffset"])
    check_against(queues, state["queues"])
    queues.close()
    assert contents(root) == contents(GOLDEN / "local-expired/consumequeue")


def test_repeating_the_whole_log_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "consumequeue"
    shutil.copytree(GOLDEN / "local-clean/consumequeue", root)
    queues = golden_queues_at(root)
    assert put_rows(queues, queue_rows()) == 0
    queues.close()
    assert contents(root) == contents(GOLDEN / "local-clean/consumequeue")


def test_the_rest_of_the_log_put_after_expiry_gives_the_same_units(tmp_path: Path) -> None:
    """The queues were lost after the log had begun to expire: the new ones start above 0."""
    state = state_of("local-expired")
    rows = [row for row in queue_rows() if row["physicalOffset"] >= state["store"]["minPhyOffset"]]
    queues = golden_queues_at(tmp_path / "consumequeue")
    assert put_rows(queues, rows) == len(rows)
    check_against(queues, state["queues"])
    queues.close()
    again = golden_queues_at(tmp_path / "consumequeue")
    check_against(again, state["queues"])
    again.close()


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_after_a_crash_cut_and_repeated_the_queues_are_what_java_recovers(
    tmp_path: Path, variant: str
) -> None:
    root = tmp_path / "consumequeue"
    shutil.copytree(GOLDEN / "local-crash" / variant / "consumequeue", root)
    want = expected("local-crash.expect-recovery.json")["variants"][variant]
    queues = golden_queues_at(root)
    recovered_end = want["recovered"]["maxPhyOffset"]
    queues.truncate(recovered_end)
    assert queues.max_log_end <= recovered_end
    put_rows(queues, surviving_rows(variant))
    check_against(queues, want["queues"])
    queues.close()


def surviving_rows(variant: str) -> list[dict[str, Any]]:
    """What the log of the crashed store still holds, as rows to put."""
    messages = expected("local-crash.expect-recovery.json")["variants"]["torn"]["messages"]
    log = b"".join(path.read_bytes() for path in files_under(f"local-crash/{variant}/commitlog"))
    names = ("physicalOffset", "size", "topic", "queueId", "queueOffset", "sysFlag")
    rows = [dict(zip(names, message[:6], strict=True)) for message in messages]
    for row in rows:
        row["tagsCode"] = decode_message(log, row["physicalOffset"]).tags_code
    return [row for row in rows if row["sysFlag"] & 0xC in (0, 8)]


def test_the_golden_files_were_not_touched() -> None:
    state = state_of("local-clean")
    want = {row["file"]: row["sha256"] for row in state["files"]}
    for path in files_under("local-clean/consumequeue"):
        name = str(path.relative_to(GOLDEN / "local-clean"))
        assert sha256(path.read_bytes()) == want[name]


FIRST, SECOND = f"{0:020}", f"{400:020}"


def a_topic(root: Path, *names: str) -> Path:
    """A directory with these files; a name that ends in a slash is a directory."""
    topic = root / "consumequeue" / "T"
    topic.mkdir(parents=True)
    for name in names:
        path = topic / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 20)
    return topic


def held(topic: Path) -> list[str]:
    return sorted(str(path.relative_to(topic)) for path in topic.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    "names",
    [(), ("0/",), (f"0/{FIRST}",), (f"0/{FIRST}", f"0/{SECOND}", f"7/{FIRST}", "2147483647/")],
)
def test_a_directory_of_queues_goes_with_all_that_is_in_it(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    topic = a_topic(tmp_path, *names)
    remove_topic_directory(topic)
    assert list((tmp_path / "consumequeue").iterdir()) == []
    remove_topic_directory(topic)


@pytest.mark.parametrize(
    "foreign",
    [
        *("notes.txt", FIRST, "0/notes.txt", "0/123", f"0/{FIRST}.bak", f"0/deep/{FIRST}"),
        *(f"x/{FIRST}", f"01/{FIRST}", f"-1/{FIRST}", f"2147483648/{FIRST}", "0/" + "9" * 20),
    ],
)
def test_what_is_no_file_of_a_queue_stays_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, foreign: str
) -> None:
    topic = a_topic(tmp_path, f"0/{SECOND}", f"1/{FIRST}", foreign)
    with caplog.at_level(logging.WARNING):
        remove_topic_directory(topic)
    assert held(topic) == [foreign]
    assert not (topic / "1").exists()
    assert str(topic / foreign.split("/", maxsplit=1)[0]) in caplog.text
    kind = "file" if foreign.rpartition("/")[0] in {"", "0"} else "directory"
    assert f"is no {kind} of a queue" in caplog.text


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / FIRST).write_bytes(b"precious")
    topic = a_topic(tmp_path, f"0/{FIRST}")
    (topic / "1").symlink_to(elsewhere, target_is_directory=True)
    (topic / "0" / SECOND).symlink_to(elsewhere / FIRST)
    remove_topic_directory(topic)
    assert (elsewhere / FIRST).read_bytes() == b"precious"
    assert (topic / "1").is_symlink()
    assert (topic / "0" / SECOND).is_symlink()
    linked = tmp_path / "consumequeue" / "L"
    linked.symlink_to(elsewhere, target_is_directory=True)
    remove_topic_directory(linked)
    assert (elsewhere / FIRST).exists()


def test_its_names_are_gone_durably(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, f"0/{FIRST}")
    with ForgetfulDisk(topic.parent) as disk:
        remove_topic_directory(topic)
    assert [Path(path) for path, _ in disk.syncs] == [topic / "0", topic, topic.parent]
    assert not (disk.synced(tmp_path / "synced") / topic.name).exists()


def test_a_deleted_topic_keeps_what_others_put_into_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(100)])
    topic = tmp_path / "consumequeue" / TOPIC
    extended = tmp_path / "consumequeue_ext" / TOPIC / "0" / FIRST
    extended.parent.mkdir(parents=True)
    extended.write_bytes(b"x")
    (topic / "README").write_text("mine")
    (topic / "0" / "backup").mkdir()
    (topic / "0" / "backup" / FIRST).write_text("mine too")
    assert store.delete_topics([TOPIC]) == 1
    assert held(topic) == [f"0/backup/{FIRST}", "README"]
    assert extended.read_bytes() == b"x"
    assert store.put_message(a_message(0)).queue_offset == 0
    assert len(store.get_message(TOPIC, 0, 0).messages) == 1
    store.shutdown()
    store = opened(tmp_path)
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (0, 1)


OLD, OTHER = "Old", "Other"


def filled(root: Path, **settings: object) -> LocalMessageStore:
    store = opened(root, **settings)
    for number in range(40):
        store.put_message(a_message(number, topic=(OLD, OTHER)[number % 2]))
    return store


def put_old(store: LocalMessageStore, *numbers: int) -> None:
    for place, number in enumerate(numbers):
        assert store.put_message(a_message(number, topic=OLD)).queue_offset == place


def bodies(store: LocalMessageStore, topic: str = OLD) -> list[bytes]:
    got = store.get_message(topic, 0, 0, count_max=32)
    return [decode_message(one.record).body for one in got.messages]


@pytest.mark.parametrize("end", ["clean", "crash", "crash before a flush"])
def test_a_deleted_topic_stays_deleted(tmp_path: Path, end: str) -> None:
    store = filled(tmp_path)
    old = store.get_message(OLD, 0, 3, count_max=1).messages[0]
    if end == "crash":
        store.flush()
    assert store.delete_topics([OLD, "Unknown"]) == 1
    crash(store) if "crash" in end else store.shutdown()
    store = opened(tmp_path)
    assert list(store.queues()) == [QueueKey(OTHER, 0)]
    assert store.get_message(OLD, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert not store.query_message(OLD, "key-6").messages
    assert store.query_message(OTHER, "key-7").messages
    assert store.message_at(old.log_offset) is None
    assert not (tmp_path / "consumequeue" / OLD).exists()
    assert check_agreement(store) == 20


@pytest.mark.parametrize("end", ["clean", "crash", "twice"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_topic_made_anew_has_its_new_messages_and_no_others(
    tmp_path: Path, end: str, flushed: bool
) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    put_old(store, 100, 101, 102)
    if flushed:
        store.flush()
    if end == "twice":
        store.delete_topics([OLD])
        put_old(store, 100, 101, 102)
    store.shutdown() if end == "clean" else crash(store)
    store = opened(tmp_path)
    assert bodies(store) == [a_body(100), a_body(101), a_body(102)]
    assert bodies(store, OTHER) == [a_body(number) for number in range(1, 40, 2)]
    [found] = store.query_message(OLD, "key-101").messages
    assert found.queue_offset == 1
    assert not store.query_message(OLD, "key-8").messages
    assert store.put_message(a_message(103, topic=OLD)).queue_offset == 3
    assert check_agreement(store) == 24


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/Old", "consumequeue/Other"])
def test_lost_queues_are_made_again_without_what_was_deleted(tmp_path: Path, lost: str) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    put_old(store, 100, 101)
    store.shutdown()
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    store = opened(tmp_path)
    assert bodies(store) == [a_body(100), a_body(101)]
    assert check_agreement(store) == 22


@pytest.mark.parametrize("lost", ["consumequeue", "config/tieredstore-queues.json"])
def test_a_log_of_deleted_topics_alone_brings_none_back(tmp_path: Path, lost: str) -> None:
    store = opened(tmp_path)
    put_old(store, *range(20))
    store.delete_topics([OLD])
    crash(store)
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    store = opened(tmp_path)
    assert list(store.queues()) == []
    assert store.get_message(OLD, 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE


@pytest.mark.parametrize("moment", ["before the queues go", "after some files", "after all"])
def test_a_deletion_that_was_cut_short_is_done_by_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = filled(tmp_path)
    delete = ConsumeQueues.delete_topics

    def cut_short(queues: ConsumeQueues, topics: list[str]) -> list[QueueKey]:
        if moment == "after some files":
            min((tmp_path / "consumequeue" / OLD / "0").iterdir()).unlink()
        elif moment == "after all":
            delete(queues, topics)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueues, "delete_topics", cut_short)
        with pytest.raises(KeyboardInterrupt):
            store.delete_topics([OLD])
    crash(store)
    store = opened(tmp_path)
    assert list(store.queues()) == [QueueKey(OTHER, 0)]
    put_old(store, 100, 101)
    crash(store)
    store = opened(tmp_path)
    assert bodies(store) == [a_body(100), a_body(101)]
    check_agreement(store)


def test_a_deletion_that_failed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path)
    unlink = os.unlink

    def refuse(path: str) -> None:
        if OLD in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(BackendRefusedError):
            store.delete_topics([OLD])
    assert QueueKey(OLD, 0) in store.queues()
    assert store.delete_topics([OLD]) == 1
    put_old(store, 100, 101)
    assert bodies(store) == [a_body(100), a_body(101)]
    store.shutdown()
    assert bodies(opened(tmp_path)) == [a_body(100), a_body(101)]


def delete_half(store: LocalMessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the deletion of the old topic fail after its first file."""
    unlink = os.unlink
    gone: list[str] = []

    def fail_later(path: str) -> None:
        if OLD in str(path) and gone:
            raise OSError(errno.EIO, "Input/output error")
        gone.append(path)
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail_later)
        with pytest.raises(BackendRefusedError):
            store.delete_topics([OLD])
    assert gone


def test_a_put_after_half_a_deletion_fits_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    put_old(store, *range(45))  # three files
    delete_half(store, monkeypatch)
    assert store.put_message(a_message(100, topic=OLD)).queue_offset == 45
    [found] = store.get_message(OLD, 0, 45).messages
    assert decode_message(found.record).body == a_body(100)
    assert store.put_message(a_message(1, topic=OTHER)).stored
    assert store.max_offset(OTHER, 0) == 1
    assert store.delete_topics([OLD]) == 1
    assert list(store.queues()) == [QueueKey(OTHER, 0)]


@pytest.mark.parametrize("end", ["none", "clean", "crash"])
def test_half_a_deletion_leaves_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    store = opened(tmp_path)
    put_old(store, *range(45))  # three files
    store.put_message(a_message(0, topic=OLD, queue_id=1))
    delete_half(store, monkeypatch)
    assert store.min_offset(OLD, 0) == store.max_offset(OLD, 0) == 45
    for queue_id, number in [(0, 45), (1, 1)]:
        put = store.put_message(a_message(100, topic=OLD, queue_id=queue_id))
        assert put.queue_offset == number
    if end != "none":
        store.flush()
        store.shutdown() if end == "clean" else crash(store)
        store = opened(tmp_path)
    with LocalReader.open(tmp_path) as reader:
        assert reader.min_offset(OLD, 0) == 45
    for queue_id, number in [(0, 45), (1, 1)]:
        assert store.min_offset(OLD, queue_id) == number
        assert store.max_offset(OLD, queue_id) == number + 1
        assert store.get_message(OLD, queue_id, 0).status is GetStatus.OFFSET_TOO_SMALL
    assert [one.queue_offset for one in store.query_message(OLD, "key-100").messages] == [1, 45]
    assert not store.query_message(OLD, "key-44").messages


def test_after_half_a_deletion_and_a_crash_no_number_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    put_old(store, *range(45))  # three files
    store.put_message(a_message(0, topic=OLD, queue_id=1))
    store.shutdown()
    store = opened(tmp_path)
    delete_half(store, monkeypatch)
    assert store.put_message(a_message(100, topic=OLD, queue_id=1)).queue_offset == 1
    crash(store)
    store = opened(tmp_path)
    assert store.put_message(a_message(101, topic=OLD)).queue_offset == 45
    check_agreement(store)


def test_what_waits_for_the_disk_is_deleted_with_its_topic(tmp_path: Path) -> None:
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH")
    hasty = a_message(0, topic=OLD)
    message = Message(
        topic=OLD, queue_id=0, body=hasty.body, properties={**hasty.properties, "WAIT": "false"}
    )
    store.put_messages([message] * 3)
    store.delete_topics([OLD])
    put_old(store, 100, 101)
    assert bodies(store) == [a_body(100), a_body(101)]


def test_records_that_a_power_cut_took_are_not_counted_as_deleted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    end = parts_of(store).log.max_offset
    store.delete_topics([OLD])
    crash(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    half = end // 2
    path.write_bytes(data[:half] + bytes(len(data) - half))
    store = opened(tmp_path)
    assert parts_of(store).deleted.end_of(OLD) == parts_of(store).log.max_offset <= half
    put_old(store, 100, 101)
    crash(store)
    store = opened(tmp_path)
    assert bodies(store) == [a_body(100), a_body(101)]
    check_agreement(store)


def test_a_deletion_is_forgotten_when_the_log_begins_behind_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.delete_topics([OLD])
    for number in range(200):
        store.put_message(a_message(number, topic=OTHER))
    assert parts_of(store).log.queue.delete_before(32_768)
    store.shutdown()
    store = opened(tmp_path)
    assert OLD not in parts_of(store).deleted
    deleted = DeletedTopics(tmp_path / "config" / DELETED_FILE)
    deleted.load()
    assert OLD not in deleted


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"version": 2, "topics": {}}', b'{"version":1,"topics":{"a":-1}}']
)
def test_a_damaged_word_on_deletions_is_reported(tmp_path: Path, data: bytes) -> None:
    filled(tmp_path).shutdown()
    (tmp_path / "config" / DELETED_FILE).write_bytes(data)
    with pytest.raises(MetadataError, match=DELETED_FILE):
        opened(tmp_path)


def test_a_queue_number_is_one_of_java(tmp_path: Path) -> None:
    for number in (0, INT32_MAX):
        assert queue_directory(tmp_path, "T", number) == tmp_path / "T" / str(number)
    for number in (-1, INT32_MAX + 1):
        with pytest.raises(BackendRefusedError, match="no queue number"):
            queue_directory(tmp_path, "T", number)
