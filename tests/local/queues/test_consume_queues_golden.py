"""The queues that the Java broker wrote: opened, and built again from its commit log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN, contents, expected, files_under, sha256
from tieredstore.codec.message import decode_message
from tieredstore.codec.queue_unit import encode_units
from tieredstore.local.consume_queues import ConsumeQueues
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.values import Boundary, QueueKey

FILE_BYTES = 400
BATCHES = [1, 7, 64, 1000]


def opened(root: Path) -> ConsumeQueues:
    queues = ConsumeQueues(root, file_bytes=FILE_BYTES, files=MappedFiles())
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
        assert queue.file_count * FILE_BYTES == row["totalSize"], row
        assert units_sha256(queues, key) == row["unitsSha256"], row


@pytest.mark.parametrize("batch", BATCHES)
def test_queues_built_again_from_the_log_have_javas_bytes(tmp_path: Path, batch: int) -> None:
    queues = opened(tmp_path / "consumequeue")
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
    queues = opened(tmp_path / "consumequeue")
    queues.correct_min_offsets(state["store"]["minPhyOffset"])
    check_against(queues, state["queues"])
    assert queues.max_log_end == state["store"]["maxPhyOffset"]
    queues.close()
    assert contents(tmp_path / "consumequeue") == contents(GOLDEN / folder / "consumequeue")


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_minimum_and_maximum_are_what_java_answers(folder: str) -> None:
    queues = opened(GOLDEN / folder / "consumequeue")
    queues.correct_min_offsets(state_of(folder)["store"]["minPhyOffset"])
    asked = 0
    for row in expected(f"{folder}.expect-queries.json"):
        query = row["query"]
        if query["op"] in ("minOffset", "maxOffset"):
            ask = queues.min_offset if query["op"] == "minOffset" else queues.max_offset
            answer = ask(query["topic"], query["queueId"])
            # Java makes a queue when it is asked about one; here that is None.
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
    queues = opened(GOLDEN / folder / "consumequeue")
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
    queues = opened(root)
    queues.delete_before(state["store"]["minPhyOffset"])
    check_against(queues, state["queues"])
    queues.close()
    assert contents(root) == contents(GOLDEN / "local-expired/consumequeue")


def test_repeating_the_whole_log_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "consumequeue"
    shutil.copytree(GOLDEN / "local-clean/consumequeue", root)
    queues = opened(root)
    assert put_rows(queues, queue_rows()) == 0
    queues.close()
    assert contents(root) == contents(GOLDEN / "local-clean/consumequeue")


def test_the_rest_of_the_log_put_after_expiry_gives_the_same_units(tmp_path: Path) -> None:
    """A store whose queues were lost after its log had expired: they start above 0."""
    state = state_of("local-expired")
    rows = [row for row in queue_rows() if row["physicalOffset"] >= state["store"]["minPhyOffset"]]
    queues = opened(tmp_path / "consumequeue")
    assert put_rows(queues, rows) == len(rows)
    check_against(queues, state["queues"])
    queues.close()
    again = opened(tmp_path / "consumequeue")
    check_against(again, state["queues"])
    again.close()


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_after_a_crash_cut_and_repeated_the_queues_are_what_java_recovers(
    tmp_path: Path, variant: str
) -> None:
    root = tmp_path / "consumequeue"
    shutil.copytree(GOLDEN / "local-crash" / variant / "consumequeue", root)
    want = expected("local-crash.expect-recovery.json")["variants"][variant]
    queues = opened(root)
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
