"""`metadata show`, `snapshot` and `reserve`, and the other verbs without the broker's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Ran, picture
from tests.cli.tier_kit import CATALOGUE, VERBS, asked, named, verb_of
from tieredstore.metadata.json_store import JsonMetadataStore


@pytest.fixture
def published(command: Command, root: Path) -> Path:
    """The golden tier, published, and its file gone."""
    ran = asked(command, root, "metadata", "snapshot").done()
    assert ran.out.startswith("generation 1 is in ")
    (root / CATALOGUE).rename(root / "kept.json")
    for path in (root / CATALOGUE).parent.glob("tieredStoreMetadata.json*"):
        path.unlink()
    return root


def elsewhere(command: Command, root: Path, *words: object) -> Ran:
    """A verb where the catalogue's file is not looked for by name: the store's own place is."""
    return command.run(*words, *named(root, metadata=None, store_path=root / "store"))


def test_what_is_published_serves_every_verb_as_the_file_does(
    command: Command, published: Path
) -> None:
    for words in VERBS:
        kept = published / "kept.json"
        with_file = command.run(*words, *named(published, metadata=kept), "--json")
        without = elsewhere(command, published, *words, "--json")
        assert (without.code, without.out) == (0, with_file.out), words
        assert without.err.count("\n") == 1
        assert "from the published catalogue, generation 1 of " in without.err
    assert elsewhere(command, published, "audit").code == 0


def test_looking_changes_nothing(command: Command, published: Path) -> None:
    before = picture(published)
    others: list[list[object]] = [["metadata", "show"], ["audit"]]
    for words in VERBS + others:
        elsewhere(command, published, *words)
    for words in VERBS:
        command.run(*words, *named(published, catalogue="rebuild"))
    assert picture(published) == before


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
def test_a_rebuild_in_memory_serves_too(command: Command, root: Path, words: list[object]) -> None:
    whole = asked(command, root, *words, "--json")
    ran = command.run(
        *words, *named(root, metadata="nowhere.json", catalogue="rebuild"), "--json"
    ).done()
    assert len(ran.rows) == len(whole.rows)


def test_show_says_where_it_is_from(command: Command, root: Path) -> None:
    (row,) = asked(command, root, "metadata", "show", "--json").rows
    assert (row["source"], row["generation"]) == ("file", None)
    assert (row["topic_count"], row["queue_count"]) == (4, 9)
    assert sum(row["segment_counts"].values()) == 57
    assert asked(command, root, "metadata", "snapshot", "--json").rows[0]["generation"] == 1
    named_published = named(root, catalogue="published")
    (found,) = command.run("metadata", "show", *named_published, "--json").rows
    assert (found["source"], found["generation"], found["epoch"]) == ("published", 1, 1)
    assert found["written_ms"] > 0
    for name in ("topic_count", "queue_count", "segment_counts", "size"):
        assert found[name] == row[name]
    shown = command.run("metadata", "show", *named_published).out
    assert "generation 1 of " in shown
    assert "57" not in shown or "segments: " in shown


def test_a_second_snapshot_of_the_same_is_the_same(command: Command, root: Path) -> None:
    for _ in range(2):
        (row,) = asked(command, root, "metadata", "snapshot", "--json").rows
        assert row["generation"] == 1


def test_a_snapshot_in_a_file_is_what_a_broker_opens(
    command: Command, published: Path, tmp_path: Path
) -> None:
    target = tmp_path / "restored.json"
    ran = elsewhere(command, published, "metadata", "snapshot", "--output", target)
    assert ran.code == 0
    assert target.read_bytes() == (published / "kept.json").read_bytes()
    assert elsewhere(command, published, "metadata", "snapshot", "--output", target).code == 5
    ran = command.run("queues", *named(published, metadata=target), "--json")
    assert len(ran.rows) == 9


def test_without_any_the_error_names_what_to_do(command: Command, root: Path) -> None:
    nowhere = named(root, metadata="nowhere.json")
    for words in (["topics"], ["metadata", "show"], ["audit"]):
        ran = command.run(*words, *nowhere)
        ran.refused(3, "`rebuild` makes one from the bytes", "--catalogue rebuild")
    ran = command.run("topics", *named(root, catalogue="published"))
    ran.refused(3)
    assert command.run("topics", *named(root, catalogue="newest")).code == 2
    assert command.run("metadata", "snapshot", *nowhere).code == 3
    assert not Path("nowhere.json").exists()


def test_a_copy_is_not_repaired(command: Command, published: Path) -> None:
    ran = elsewhere(command, published, "audit", "--repair")
    assert (ran.code, ran.err.count("there is no such file")) == (3, 1)
    assert not (published / CATALOGUE).exists()


def test_a_broker_that_runs_keeps_snapshots_away(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE):
        ran = asked(command, root, "metadata", "snapshot")
        ran.refused(5, "stop the broker first")
        assert asked(command, root, "metadata", "show").code == 0


def test_a_rebuild_starts_from_what_is_published_and_refuses_to_undo_it(
    command: Command, published: Path
) -> None:
    with JsonMetadataStore.open(published / "kept.json", read_only=True) as before:
        topics = before.topics()
    assert elsewhere(command, published, "rebuild").code == 0
    with JsonMetadataStore.open(published / CATALOGUE, read_only=True) as after:
        assert after.topics() == topics  # the times and reserve hours are no bytes' to know
    assert elsewhere(command, published, "metadata", "snapshot").out.startswith("generation 2 ")
    ran = command.run("rebuild", *named(published, metadata=published / "kept.json"))
    ran.refused(5, "move the file away")


def test_a_damaged_one_is_told(command: Command, published: Path) -> None:
    (file,) = (path for path in (published / "tiered" / ".catalog").rglob("*.json"))
    file.write_bytes(file.read_bytes()[:-30])
    ran = elsewhere(command, published, "topics")
    ran.refused(4, "generation 1: it is damaged")
    assert command.run("topics", *named(published, catalogue="rebuild")).code == 0


def hours_of(command: Command, root: Path, topic: str) -> tuple[int, bool]:
    (row,) = (row for row in asked(command, root, "topics", "--json").rows if row["topic"] == topic)
    return row["reserve_hours"], row["reserve_hours_is_default"]


def test_a_topic_is_given_hours_of_its_own_and_the_default_back(
    command: Command, root: Path
) -> None:
    before = asked(command, root, "topics", "--json").rows
    ran = asked(command, root, "metadata", "reserve", "GoldAa", 720)
    assert (ran.code, ran.out, ran.err) == (0, "GoldAa is kept 720 hours\n", "")
    assert hours_of(command, root, "GoldAa") == (720, False)
    (row,) = asked(command, root, "metadata", "reserve", "GoldAa", "default", "--json").rows
    assert (row["reserve_hours"], row["reserve_hours_before"]) == (72, 720)
    assert hours_of(command, root, "GoldAa") == (72, True)
    after = asked(command, root, "topics", "--json").rows
    assert after == before


def test_hours_reach_readers_elsewhere(command: Command, root: Path) -> None:
    """What is published is brought up to date; where nothing is, nothing is made."""
    (unpublished,) = asked(command, root, "metadata", "reserve", "GoldAa", 7, "--json").rows
    assert unpublished["generation"] is None
    assert not (root / "tiered" / ".catalog").exists()
    assert asked(command, root, "metadata", "snapshot").code == 0
    ran = asked(command, root, "metadata", "reserve", "GoldAa", 720)
    assert ran.out == "GoldAa is kept 720 hours; published as generation 2\n"
    rows = command.run("topics", *named(root, catalogue="published"), "--json").rows
    assert [row["reserve_hours"] for row in rows if row["topic"] == "GoldAa"] == [720]


def test_hours_are_not_given_where_another_writer_publishes(command: Command, root: Path) -> None:
    older = root / "older.json"
    older.write_bytes((root / CATALOGUE).read_bytes())
    assert asked(command, root, "metadata", "snapshot").code == 0
    stale = named(root, metadata=older)
    ran = command.run("metadata", "reserve", "GoldAa", 720, *stale)
    ran.refused(5, "another writer's")
    rows = command.run("topics", *stale, "--json").rows
    assert all(row["reserve_hours_is_default"] for row in rows)


def test_no_hours_are_those_of_the_store(command: Command, root: Path) -> None:
    """To RocketMQ 0 means so too."""
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.add_topic("Zero", reserve_hours=0)
    assert hours_of(command, root, "Zero") == (72, True)
    assert "72 (default)" in asked(command, root, "topics").out


def test_a_snapshot_of_another_place_is_not_published(command: Command, root: Path) -> None:
    (root / "empty").mkdir()
    ran = command.run("metadata", "snapshot", *named(root, path=root / "empty"))
    ran.refused(3)
    assert list((root / "empty").iterdir()) == []


def test_hours_are_not_given_to_what_is_not_there_or_in_use(command: Command, root: Path) -> None:
    for hours in ("0", "-1", "1.5", "soon", "9" * 30):
        ran = asked(command, root, "metadata", "reserve", "--", "GoldAa", hours)
        assert ran.code == 2
    ran = asked(command, root, "metadata", "reserve", "Nobody", 7)
    ran.refused(3, "no topic 'Nobody' is in this tier; there are: ")
    with JsonMetadataStore.open(root / CATALOGUE):
        ran = asked(command, root, "metadata", "reserve", "GoldAa", 7)
        ran.refused(5, "stop the broker first")
    assert hours_of(command, root, "GoldAa")[1]
    ran = command.run("metadata", "reserve", "GoldAa", 7, *named(root, metadata="nowhere.json"))
    assert ran.code == 3
