"""Java's index files made again from Java's messages, and Java's answers given again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.codec.golden_files import GOLDEN, expected, files_under
from tests.local.keys.index_kit import (
    FOREVER,
    GOLDEN_ITEMS,
    GOLDEN_SLOTS,
    NamingClock,
    ask_like_java,
    golden_rows,
    index_bytes,
    put_all,
    row_of,
    service_at,
)
from tieredstore.local.index_service import IndexService

JAVA = {path.name: path.read_bytes() for path in sorted((GOLDEN / "local-clean/index").iterdir())}


def golden_service(root: Path) -> IndexService:
    clock = NamingClock(JAVA)
    return service_at(root, slots=GOLDEN_SLOTS, items=GOLDEN_ITEMS, clock=clock)


def golden_copy(folder: str, root: Path) -> IndexService:
    shutil.copytree(GOLDEN / folder / "index", root / "index", copy_function=shutil.copyfile)
    (root / "index").chmod(0o755)
    return golden_service(root)


def ask(service: IndexService, query: dict[str, Any]) -> list[int]:
    times = {"begin": query["begin"], "end": query["end"]}
    return ask_like_java(service, query["topic"], query["key"], count_max=query["maxNum"], **times)


@pytest.mark.parametrize("batch_size", [1, 7, 256, 10_000])
def test_javas_messages_give_javas_files(tmp_path: Path, batch_size: int) -> None:
    with golden_service(tmp_path) as service:
        assert service.load(abnormal=False) == 0
        put_all(service, list(golden_rows()), batch_size=batch_size)
        assert service.names == list(JAVA)
    assert index_bytes(tmp_path) == JAVA


def test_replaying_the_whole_log_over_javas_files_changes_no_byte(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        put_all(service, list(golden_rows()))
    assert index_bytes(tmp_path) == JAVA


def test_java_files_without_a_word_on_them_are_made_again_after_a_crash(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        assert service.load(abnormal=True) == 0
        assert service.names == []
        put_all(service, list(golden_rows()))
    assert index_bytes(tmp_path) == JAVA


@pytest.mark.parametrize("proven", [1, 2, 3])
def test_java_files_that_its_checkpoint_covers_are_kept_after_a_crash(
    tmp_path: Path, proven: int
) -> None:
    rows = expected("local-clean.expect-state.json")["indexFiles"]
    with golden_copy("local-clean", tmp_path) as service:
        service._clock = NamingClock(list(JAVA)[proven:])
        start = service.load(abnormal=True, durable_timestamp=rows[proven - 1]["endTimestamp"])
        assert service.names == list(JAVA)[:proven]
        assert start == rows[proven - 1]["endPhyOffset"]
        put_all(service, [row for row in golden_rows() if row.log_offset >= start])
    assert index_bytes(tmp_path) == JAVA


@pytest.mark.parametrize("folder", ["local-clean", "local-expired"])
def test_every_query_is_answered_as_java_answered_it(tmp_path: Path, folder: str) -> None:
    service = golden_copy(folder, tmp_path)
    service.load(abnormal=False)
    rows = expected(f"{folder}.expect-queries.json")
    asked = 0
    for row in rows:
        query: dict[str, Any] = row["query"]
        if query["op"] != "queryOffset":
            continue
        asked += 1
        newest = service._files[-1].header
        assert {
            "phyOffsets": ask(service, query),
            "indexLastUpdateTimestamp": newest.end_timestamp,
            "indexLastUpdatePhyOffset": newest.end_log_offset,
        } == row["result"], query
    assert asked >= 35
    service.close()


def test_no_message_is_missed_whatever_second_it_was_stored_in(tmp_path: Path) -> None:
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        for row in golden_rows():
            if row.sys_flag & 0x0C == 0x0C:
                continue
            at = row.store_timestamp
            for text in row.texts:
                topic, _, key = text.partition("#")
                found = list(service.candidates(topic, key, begin=at, end=at))
                assert found.count(row.log_offset) == 1
                everything = list(service.candidates(topic, key, begin=0, end=FOREVER))
                assert everything == sorted(set(everything), reverse=True)


def test_expiry_leaves_the_files_that_java_left(tmp_path: Path) -> None:
    first = expected("local-expired.expect-state.json")["store"]["minPhyOffset"]
    with golden_copy("local-clean", tmp_path) as service:
        service.load(abnormal=False)
        assert service.delete_expired(first) == 2
        left = {path.name for path in (GOLDEN / "local-expired/index").iterdir()}
        assert {path.name for path in (tmp_path / "index").iterdir()} == left == set(service.names)


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_after_javas_crash_the_index_is_what_its_safe_mode_makes_of_the_log(
    tmp_path: Path, variant: str
) -> None:
    recovery = expected("local-crash.expect-recovery.json")["variants"]["torn"]
    log = b"".join(file.read_bytes() for file in files_under(f"local-crash/{variant}/commitlog"))
    spans = [(start, start + size) for start, size, *_ in recovery["messages"]]
    rows = [row_of(log[start:stop]) for start, stop in spans]
    with golden_copy(f"local-crash/{variant}", tmp_path) as service:
        assert service.load(abnormal=True) == 0
        service.truncate(recovery["recovered"]["maxPhyOffset"])
        put_all(service, rows)
        safe = recovery["withMessageIndexSafe"]
        [file], [header] = service._files, safe["indexFiles"]
        assert (file.header.next_item, file.header.used_slot_count) == (
            header["indexCount"],
            header["usedSlots"],
        )
        for row in safe["answers"]:
            query = row["query"]
            if query["op"] != "queryOffset":
                continue
            assert ask(service, query) == row["result"]["phyOffsets"]
