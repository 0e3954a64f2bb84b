"""A store that crashed, seen as it lies there: nothing is recovered, nothing torn is shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.codec.golden_files import GOLDEN, expected

TORN = GOLDEN / "local-crash" / "torn"


def survivors(variant: str) -> list[list[object]]:
    java = expected("local-crash.expect-recovery.json")["variants"][variant]
    return [row for row in java["messages"] if not row[5] & 4]  # what is prepared is in no queue


def test_cat_shows_every_message_but_the_torn_one(command: Command) -> None:
    ran = command.golden("cat", TORN, "--json")
    assert ran.code == 0
    assert ran.err.count("\n") == 1
    assert "torn" in ran.err
    assert [
        [row["log_offset"], row["size"], row["topic"], row["queue_id"], row["queue_offset"]]
        for row in ran.rows
    ] == [row[:5] for row in survivors("torn")]


def test_queues_that_are_behind_name_fewer(command: Command) -> None:
    rows = command.golden("cat", GOLDEN / "local-crash/torn-and-queues-behind", "--json").rows
    facts = expected("local-crash.expect-recovery.json")["howTheDamageWasMade"]
    assert len(rows) == sum(row["unitsKept"] for row in facts["consumeQueueUnits"])


@pytest.mark.parametrize("variant", ["torn", "torn-and-queues-behind"])
def test_info_tells_what_a_recovery_would_find(command: Command, variant: str) -> None:
    (facts,) = command.golden("info", GOLDEN / "local-crash" / variant, "--json").rows
    document = expected("local-crash.expect-recovery.json")
    recovered = document["variants"][variant]["recovered"]
    assert facts["max_log_offset"] == recovered["maxPhyOffset"]
    assert facts["min_log_offset"] == recovered["minPhyOffset"]
    assert facts["earliest_timestamp"] == recovered["earliestMessageTime"]
    recovery = facts["recovery"]
    assert recovery["abort_file"]
    assert (
        recovery["torn_tail"]["log_offset"] == document["howTheDamageWasMade"]["lastRecordOffset"]
    )
    assert recovery["units_behind_log_end"] == (1 if variant == "torn" else 0)


@pytest.mark.parametrize("missing", [False, True])
def test_query_finds_the_keys_that_survived_also_without_an_index(
    command: Command, tmp_path: Path, *, missing: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(TORN, store)
    if missing:
        shutil.rmtree(store / "index")
    java = expected("local-crash.expect-recovery.json")["variants"]["torn"]
    found_count = 0
    for row in java["withMessageIndexSafe"]["answers"]:
        if row["query"]["op"] != "queryOffset":
            continue
        query = row["query"]
        ran = command.golden("query", store, "--json", "--", query["topic"], query["key"])
        offsets = [message["log_offset"] for message in ran.rows]
        # Java's answer also has what merely has the same hash.
        assert set(offsets) <= set(row["result"]["phyOffsets"])
        assert offsets == sorted(offsets, reverse=True)
        found_count += len(offsets)
    assert found_count > 20


def damaged_copy(target: Path, log_offset: int) -> Path:
    shutil.copytree(GOLDEN / "local-clean", target)
    path = target / "commitlog" / f"{log_offset - log_offset % 32768:020d}"
    data = bytearray(path.read_bytes())
    data[log_offset % 32768 + 100] ^= 1
    path.write_bytes(data)
    return target


def test_a_damaged_record_is_told_of_and_hides_no_other(command: Command, tmp_path: Path) -> None:
    store = damaged_copy(tmp_path / "store", 493)
    ran = command.golden("cat", store, "--json")
    assert ran.code == 4
    assert ran.err.count("\n") == 1
    assert "1 damaged" in ran.err
    assert "at byte 493" in ran.err
    assert len(ran.rows) == 611
    assert 493 not in {row["log_offset"] for row in ran.rows}
    key = "0A002900126728F00AA8000003E80001"
    ran = command.golden("query", store, "GoldAa", key)
    ran.refused(4)
