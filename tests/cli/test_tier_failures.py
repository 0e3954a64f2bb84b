"""A tier that was named wrongly: one line on stderr that says what to do, and a code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import CATALOGUE, LEGACY, TIER, VERBS, asked, named, verb_of
from tests.codec.golden_files import BROKER
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.values import QueueRecord

NO_LS = [words for words in VERBS if words[0] != "ls"]


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (3, ["cat", "Nobody"], "no topic 'Nobody' is in this tier; there are: %RETRY%gold_group"),
        (3, ["cat", "GoldAa", "--queue", 9], "no queue 9 is there; there are: 0, 1, 2"),
        (3, ["offset", "GoldAa", 9, 0], "no queue 9"),
        (3, ["offset", "Nobody", 0, 0], "no topic"),
        (3, ["queues", "Nobody"], "no topic"),
        (3, ["segments", "Nobody"], "no topic"),
        (3, ["segments", "GoldAa", 3], "no queue 3"),
        (3, ["ls", "broker-x"], f"there are the brokers: {BROKER}"),
        (2, ["cat", "GoldAa", "--from", "yesterday"], "ISO 8601"),
        (2, ["cat", "GoldAa", "--from", "-1"], "--from"),
        (2, ["cat", "GoldAa", "--count", "x"], "--count"),
        (2, ["cat"], "TOPIC"),
        (2, ["offset", "GoldAa", 0, "soon"], "ISO 8601"),
        (2, ["topics", "--nonsense"], "--nonsense"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    command: Command, code: int, words: list[object], told: str
) -> None:
    ran = asked(command, TIER, *words, "--json")
    ran.refused(code, told)


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
@pytest.mark.parametrize(
    ("code", "others", "told"),
    [
        (2, {"provider": None}, "--config FILE, or --provider"),
        (2, {"provider": "memory"}, "a tier in memory"),
        (2, {"provider": "posixx"}, "did you mean 'posix'"),
        (2, {"path": None}, "--path ROOT"),
        (3, {"path": "no-such-directory"}, "no-such-directory: there is no such directory"),
        (3, {"path": LEGACY / "store"}, "no cluster lies here"),
        (3, {"cluster": "Other"}, "no cluster 'Other' is in this tier; there are: GoldenCluster"),
        (3, {"config": "nowhere.toml"}, "nowhere.toml: there is no such file"),
    ],
)
def test_a_tier_that_is_not_there_is_told_with_what_to_do(
    command: Command, words: list[object], code: int, others: dict[str, object], told: str
) -> None:
    ran = command.run(*words, *named(TIER, **others), "--json")
    ran.refused(code, told)


@pytest.mark.parametrize("words", NO_LS, ids=verb_of)
def test_the_wrong_broker_is_told_the_right_one(command: Command, words: list[object]) -> None:
    for others in ({"broker": "broker-x"}, {"broker": None}):
        ran = command.run(*words, *named(TIER, **others), "--json")
        ran.refused(3, f"there are: {BROKER}; name one with --broker")


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
def test_a_catalogue_that_the_system_does_not_give_is_refused(
    command: Command, tmp_path: Path, words: list[object]
) -> None:
    ran = command.run(*words, *named(TIER, metadata=tmp_path), "--json")
    assert (ran.code, ran.err.count("\n")) == (5, 1), ran
    assert "Is a directory" in ran.err


def test_other_brokers_of_the_catalogue_are_noted(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.put(QueueRecord(broker_name="broker-b", topic="GoldAa", queue_id=7))
    ran = asked(command, root, "cat", "GoldAa", "--queue", 1, "--json")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert "note: the catalogue has other brokers too: broker-b" in ran.err


def test_a_topic_and_a_queue_without_messages_are_there(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.add_topic("NoQueue", reserve_hours=7)
        catalogue.add_topic("Empty")
        catalogue.put(QueueRecord(broker_name=BROKER, topic="Empty", queue_id=0))
    hours = {
        row["topic"]: row["reserve_hours"] for row in asked(command, root, "topics", "--json").rows
    }
    assert (hours["NoQueue"], hours["Empty"]) == (7, 72)
    for words in (["cat", "NoQueue"], ["queues", "NoQueue"], ["cat", "Empty"]):
        ran = asked(command, root, *words, "--json").done()
        assert ran.out == ""
    (row,) = asked(command, root, "queues", "Empty", "--json").rows
    assert (row["min_offset"], row["max_offset"], row["begin_timestamp"]) == (0, 0, None)
    ran = asked(command, root, "offset", "Empty", 0, 0)
    ran.refused(3)


def test_a_catalogue_whose_backup_serves_is_noted(command: Command, root: Path) -> None:
    wanted = asked(command, root, "queues", "--json")
    (root / CATALOGUE).write_bytes(b"{")
    shutil.copy(TIER / CATALOGUE, root / f"{CATALOGUE}.bak")
    ran = asked(command, root, "queues", "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (0, wanted.out, 1), ran
    assert "note: " in ran.err
    assert "its backup is used" in ran.err


def test_a_settings_file_that_names_no_tier_is_told(command: Command, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for text, told in (
        ("brokerName=a\n", "a tier in memory"),
        ("brokerNam=a\n", "did you mean brokerName"),
        ("tieredBackendServiceProvider=posix\n", "--path ROOT"),
    ):
        conf.write_text(text)
        ran = command.run("topics", "--config", conf)
        ran.refused(2, told, str(conf))
