"""A damaged tier: what is whole is shown, what is not is told of in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Row, picture
from tests.cli.tier_kit import (
    TIER,
    as_java_told,
    asked,
    in_store_order,
    java_messages,
    segment_file,
    verb_of,
)

Damage = Callable[[Path], None]


def flip(queue: str, kind: str, base: int, position: int) -> Damage:
    def damage(root: Path) -> None:
        path = segment_file(root, queue, kind, base)
        data = bytearray(path.read_bytes())
        data[position] ^= 0xFF
        path.write_bytes(data)

    return damage


def remove(queue: str, kind: str, base: int) -> Damage:
    return lambda root: segment_file(root, queue, kind, base).unlink()


def cut(queue: str, kind: str, base: int, size: int) -> Damage:
    return lambda root: os.truncate(segment_file(root, queue, kind, base), size)


def within(begin: int, end: int) -> Callable[[Row], bool]:
    """Messages of GoldAa/0 whose records reach into these bytes of the log."""
    return lambda row: (
        row["queue_id"] == 0 and row["log_offset"] < end and row["log_offset"] + row["size"] > begin
    )


def numbered(begin: int, end: int) -> Callable[[Row], bool]:
    return lambda row: row["queue_id"] == 0 and begin <= row["queue_offset"] < end


END = 1 << 40


@pytest.mark.parametrize(
    ("damage", "is_lost"),
    [
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 300), within(300, 301), id="a body"),
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 493), within(493, 494), id="a size"),
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 498), within(493, 494), id="a magic"),
        pytest.param(
            flip("GoldAa/0", "CONSUME_QUEUE", 400, 47), numbered(22, 23), id="a unit's place"
        ),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 0), within(0, 13167), id="the first log"),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 13167), within(13167, 26248), id="a log"),
        pytest.param(cut("GoldAa/0", "COMMIT_LOG", 13167, 5000), within(18167, 26248), id="cut"),
        pytest.param(remove("GoldAa/0", "CONSUME_QUEUE", 400), numbered(20, 40), id="units"),
        pytest.param(cut("GoldAa/0", "COMMIT_LOG", 41521, 2000), within(43521, END), id="the end"),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 41521), within(41521, END), id="the last"),
        pytest.param(remove("GoldAa/0", "CONSUME_QUEUE", 1600), numbered(80, 83), id="last units"),
    ],
)
def test_cat_shows_all_that_is_whole(
    command: Command, root: Path, damage: Damage, is_lost: Callable[[Row], bool]
) -> None:
    damage(root)
    before = picture(root)
    rows = in_store_order(java_messages("GoldAa"))
    wanted = [row for row in rows if not is_lost(row)]
    assert len(wanted) < len(rows)
    ran = asked(command, root, "cat", "GoldAa", "--json")
    assert as_java_told(ran.rows) == wanted
    assert (ran.code, ran.err.count("\n")) == (4, 1), ran.err
    assert "restore the segment from a copy" in ran.err
    assert picture(root) == before
    sound = asked(command, root, "cat", "GoldAa", "--queue", 1, "--json")
    assert (sound.code, sound.err) == (0, "")


def test_the_number_of_messages_in_a_missing_segment_is_told(command: Command, root: Path) -> None:
    remove("GoldAa/0", "COMMIT_LOG", 13167)(root)
    lost = len([row for row in java_messages("GoldAa") if within(13167, 26248)(row)])
    ran = asked(command, root, "cat", "GoldAa")
    assert f"{lost} damaged messages were not shown" in ran.err


def test_cat_from_a_time_goes_on_where_the_search_meets_damage(
    command: Command, root: Path
) -> None:
    remove("GoldAa/0", "COMMIT_LOG", 13167)(root)
    time = 1795171550000  # in the middle of what is missing
    wanted = [
        row
        for row in in_store_order(java_messages("GoldAa"))
        if row["store_timestamp"] >= time and not within(13167, 26248)(row)
    ]
    ran = asked(command, root, "cat", "GoldAa", "--from", time, "--json")
    assert as_java_told(ran.rows) == wanted
    assert ran.code == 4


@pytest.mark.parametrize("words", [["topics"], ["queues"], ["segments"]], ids=verb_of)
def test_what_was_committed_and_is_gone_is_told_by_every_verb(
    command: Command, root: Path, words: list[object]
) -> None:
    cut("GoldAa/0", "COMMIT_LOG", 41521, 2000)(root)
    sound = asked(command, TIER, *words, "--json")
    ran = asked(command, root, *words, "--json")
    assert (ran.code, ran.err.count("\n"), len(ran.rows)) == (4, 1, len(sound.rows))
    assert "GoldAa/0: " in ran.err
    assert "gone" in ran.err
