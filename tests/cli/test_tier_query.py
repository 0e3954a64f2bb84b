"""The verb query of a tier, on the one that Java wrote: what a scan of its messages finds."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command, Row
from tests.cli.test_tier_messages import FIELDS, TOPICS
from tests.cli.tier_kit import TIER, asked, tier_beside
from tieredstore.cli.output import ExitCode


def keys_of(row: Row) -> set[str]:
    return {row["unique_key"] or "", *(row["keys"] or "").split(" ")} - {""}


def test_query_finds_what_a_scan_finds_newest_first(command: Command) -> None:
    """What Java's last index file had was not uploaded: the youngest messages are not found."""
    found_count = 0
    for topic in TOPICS:
        rows = asked(command, TIER, "cat", topic, "--json").rows
        for key in sorted({key for row in rows for key in keys_of(row)})[::20]:
            ran = asked(command, TIER, "query", topic, key, "--max", 500, "--json")
            assert (ran.code, "no such message" in ran.err) == (0, not ran.rows)
            assert all(list(row) == FIELDS for row in ran.rows)
            wanted = [row for row in rows if key in keys_of(row)]
            assert all(row in wanted for row in ran.rows)
            times = [row["store_timestamp"] for row in ran.rows]
            assert times == sorted(times, reverse=True)
            found_count += len(ran.rows)
    assert found_count > 50


def test_a_window_and_a_limit_are_kept(command: Command) -> None:
    topic = TOPICS[0]
    rows = asked(command, TIER, "cat", topic, "--json").rows
    key = max(
        {key for row in rows for key in keys_of(row)},
        key=lambda key: sum(key in keys_of(row) for row in rows),
    )
    every = asked(command, TIER, "query", topic, key, "--max", 500, "--json").rows
    assert len(every) > 2
    ran = asked(command, TIER, "query", topic, key, "--max", 2, "--json")
    assert ran.rows == every[:2]
    assert "there are more than 2" in ran.err
    time = every[1]["store_timestamp"]
    window = ("--begin", time, "--end", time)
    at_once = asked(command, TIER, "query", topic, key, *window, "--json").rows
    assert at_once == [row for row in every if row["store_timestamp"] == time]
    assert asked(command, TIER, "query", topic, key).out.count("\n") >= 2


def test_a_key_that_is_not_there_is_no_error_and_a_topic_is(command: Command) -> None:
    ran = asked(command, TIER, "query", TOPICS[0], "absent")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: note: the uploaded index has no such message\n"
    ran = asked(command, TIER, "query", "NoTopic", "absent")
    assert ran.code == ExitCode.NOT_THERE


def test_where_the_index_was_not_uploaded_to_the_end_a_note_says_what_helps(
    command: Command, tmp_path: Path
) -> None:
    store, named = ("--store-path", tmp_path), tier_beside(tmp_path)
    for key in ("first", "second"):
        command.run("put", "Orders", *store, "--body", "x", "--key", key)
        assert command.run("offload", *named).code == 0
        ran = command.run("query", "Orders", key, *named, "--json")
        assert (ran.code, [row["keys"] for row in ran.rows], ran.err) == (0, [key], "")
        elsewhere = (*named, "--catalogue", "published")
        ran = command.run("query", "Orders", key, *elsewhere, "--json")
        assert (ran.code, ran.out, ran.err.count("\n")) == (0, "", 2)  # it is a copy, too
        reach = ("0 of 1", "1 of 2")[key == "second"]
        assert f"of Orders/0 it has the offsets below {reach}" in ran.err
        assert "`offload --seal`" in ran.err
        assert command.run("offload", *named, "--seal").code == 0
        assert len(command.run("query", "Orders", key, *named, "--json").rows) == 1
        assert "does not reach" not in command.run("query", "Orders", "absent", *elsewhere).err


def test_an_answer_that_may_lack_something_says_so_also_where_something_was_found(
    command: Command, tmp_path: Path
) -> None:
    store, named = ("--store-path", tmp_path), tier_beside(tmp_path)
    for sealed in (("--seal",), ()):
        command.run("put", "Orders", *store, "--body", "x", "--key", "shared")
        assert command.run("offload", *named, *sealed).code == 0
    assert len(command.run("query", "Orders", "shared", *named, "--json").rows) == 2
    ran = command.run("query", "Orders", "shared", *named, "--catalogue", "published", "--json")
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, [0])
    assert "more messages may have the key" in ran.err
    assert "of Orders/0 it has the offsets below 1 of 2" in ran.err


def test_a_queue_whose_messages_have_all_expired_waits_for_no_index(
    command: Command, tmp_path: Path
) -> None:
    settings = tmp_path / "tier.toml"
    settings.write_text(
        f"""[tieredstore]
broker_name = "b"
provider = "posix"
path = "{tmp_path / "tier"}"
store_path = "{tmp_path}"
reserve_hours = 0
"""
    )
    command.run("put", "Orders", "--store-path", tmp_path, "--body", "x", "--key", "first")
    assert command.run("offload", "--config", settings, "--seal").code == 0
    assert command.run("expire", "--config", settings).code == 0
    ran = command.run("query", "Orders", "first", "--config", settings)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: note: the uploaded index has no such message\n"
