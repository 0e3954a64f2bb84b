"""The verb why, on the tier that Java wrote: where each message is, and why one is not there."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command, Row
from tests.cli.tier_kit import TIER, asked, java_messages, segment_file
from tieredstore.cli.output import ExitCode


def bounds(command: Command, topic: str, queue: int) -> Row:
    rows = asked(command, TIER, "queues", topic, "--json").rows
    (row,) = [row for row in rows if row["queue_id"] == queue]
    return row


def test_why_names_the_bytes_of_every_message(command: Command) -> None:
    for told in java_messages()[::17]:
        place = told["topic"], told["queue_id"], told["queue_offset"]
        ran = asked(command, TIER, "why", *place, "--json").done()
        (row,) = ran.rows
        assert row["place"] == "IN_TIER"
        assert row["log_offset"] == told["log_offset"]
        assert row["store_timestamp"] == told["store_timestamp"]
        log, queue = row["log_segment"], row["queue_segment"]
        assert log["base_offset"] <= told["log_offset"] < log["base_offset"] + log["size"]
        units = range(queue["base_offset"], queue["base_offset"] + queue["size"])
        assert told["queue_offset"] * 20 in units
        hours = row["reserve_hours"]
        assert row["expires_from"] >= told["store_timestamp"] + hours * 3_600_000


def test_why_says_by_which_keys_the_index_finds_a_message(command: Command) -> None:
    found_by = not_found_by = 0
    for told in java_messages()[::7]:
        place = told["topic"], told["queue_id"], told["queue_offset"]
        (row,) = asked(command, TIER, "why", *place, "--json").rows
        found_by += len(row["found_by"])
        not_found_by += len(row["not_found_by"])
        for key in row["found_by"]:
            hits = asked(command, TIER, "query", told["topic"], key, "--max", 500, "--json").rows
            assert row["log_offset"] in {hit["log_offset"] for hit in hits}
    assert found_by > 20
    assert not_found_by > 0  # Java's last index file was not uploaded


def test_why_tells_an_expired_message_from_one_that_is_still_to_come(command: Command) -> None:
    shown = 0
    for told in asked(command, TIER, "queues", "--json").rows:
        place = told["topic"], told["queue_id"]
        behind = asked(command, TIER, "why", *place, told["max_offset"])
        assert behind.code == 0
        assert "is not in the tier yet" in behind.out
        if told["min_offset"]:
            gone = asked(command, TIER, "why", *place, told["min_offset"] - 1)
            assert "is below the tier" in gone.out
            assert "expired" in gone.out
            shown += 1
    assert shown


def test_why_is_read_by_people_too(command: Command) -> None:
    told = java_messages()[0]
    ran = asked(command, TIER, "why", told["topic"], told["queue_id"], told["queue_offset"])
    assert "is in the tier" in ran.out
    assert "record: " in ran.out
    assert "unit: " in ran.out
    assert "it may go from " in ran.out


def test_a_queue_that_is_not_there_is_named(command: Command) -> None:
    ran = asked(command, TIER, "why", "GoldAa", 77, 0)
    ran.refused(ExitCode.NOT_THERE, "no queue 77")
    assert asked(command, TIER, "why", "NoTopic", 0, 0).code == ExitCode.NOT_THERE


def test_a_damaged_message_is_damage(command: Command, root: Path) -> None:
    told = next(row for row in java_messages() if row["log_offset"] == 0)
    place = told["topic"], told["queue_id"], told["queue_offset"]
    file = segment_file(root, f"{told['topic']}/{told['queue_id']}", "COMMIT_LOG", 0)
    with file.open("r+b") as log:
        log.seek(4)
        log.write(b"\0\0\0\0")  # the magic
    ran = asked(command, root, "why", *place, "--json")
    assert ran.code == ExitCode.DAMAGE
    assert ran.rows[0]["place"] == "DAMAGED"
    assert ran.err.count("\n") == 1


def test_a_message_whose_log_is_gone_is_damaged_and_not_still_to_come(
    command: Command, root: Path
) -> None:
    told = bounds(command, "GoldAa", 0)
    for file in segment_file(root, "GoldAa/0", "COMMIT_LOG", 0).parent.iterdir():
        file.unlink()
    ran = asked(command, root, "why", "GoldAa", 0, told["max_offset"] - 1)
    assert ran.code == ExitCode.DAMAGE
    assert "is damaged" in ran.out
    assert "is not there" in ran.err


def test_why_looks_past_other_messages_of_the_same_key_and_time(
    command: Command, tmp_path: Path
) -> None:
    put = ("put", "Many", "--store-path", tmp_path, "--body", "x", "--key", "same")
    assert command.run(*put, "--count", 100).code == 0
    assert command.run("offload", "--store-path", tmp_path, "--seal").code == 0
    tier = ("--provider", "posix", "--path", tmp_path / "tier", "--store-path", tmp_path)
    for offset in (0, 50, 99):
        (row,) = command.run("why", "Many", 0, offset, *tier, "--json").rows
        assert (row["found_by"], row["not_found_by"]) == (["same"], [])
