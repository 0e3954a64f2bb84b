"""The parser: an option means the same in every verb, and help fits a screen."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.cli_kit import ROOT, Command, Row, started
from tests.cli.tier_kit import TIER, java_messages, named
from tests.cli.verb_kit import CLEAN, commands
from tieredstore.cli.main import RENAMED_VERBS, VERBS

LINES_MAX: Final = 60
COLUMNS: Final = 80
EVERY: Final = sorted(commands())


def options_of(name: str) -> list[Any]:
    return [known for known in commands()[name].params if known.param_type_name == "option"]


def test_an_option_means_one_thing_in_all_verbs() -> None:
    """Its help text and its kind of value are the same."""
    meanings: dict[str, dict[tuple[object, ...], list[str]]] = defaultdict(dict)
    for name in EVERY:
        for known in options_of(name):
            kind = known.type_descriptor.annotation
            meaning = (known.help, known.metavar, getattr(kind, "__name__", kind), known.multiple)
            for word in (*known.opts, *known.secondary_opts):
                meanings[word].setdefault(meaning, []).append(name)
    several = {word: found for word, found in meanings.items() if len(found) > 1}
    assert several == {}


def test_every_option_and_argument_says_what_it_is() -> None:
    silent = [(name, known.name) for name in EVERY for known in options_of(name) if not known.help]
    assert silent == []


def test_the_help_of_every_verb_fits_a_screen(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    for words in ([], ["local"], ["catalogue"], *(name.split() for name in EVERY)):
        lines = command.run(*words, "--help").done().out.splitlines()
        assert len(lines) <= LINES_MAX, (words, len(lines))
        assert max(map(len, lines)) <= COLUMNS, words


def test_the_help_groups_the_verbs_by_what_one_wants(command: Command) -> None:
    said = command.run("--help").done().out
    titles = [line for line in said.splitlines() if line.endswith(":") and line[0] != " "]
    wanted = ["Options:", "Look:", "Check:", "Repair:", "Move:", "Try:"]
    assert [title for title in titles if title in wanted] == wanted
    assert sorted(VERBS) == sorted({name.split()[0] for name in EVERY})


def test_a_name_that_is_gone_is_shown_by_no_verb() -> None:
    shown = {word for name in EVERY for known in options_of(name) for word in known.opts}
    assert not shown & {"--metadata", "--to-metadata", "--output", "--count"}
    assert not set(RENAMED_VERBS) & set(VERBS)


def test_an_old_name_is_taken_with_a_line_that_names_the_new_one(
    command: Command, tmp_path: Path
) -> None:
    catalogue = TIER / "store/config/tieredStoreMetadata.json"
    tier = named(TIER, catalogue_file=None)
    ran = command.run("cat", "GoldAa", "--count", 2, f"--metadata={catalogue}", *tier, "--json")
    assert ran.code == 0
    assert [row["topic"] for row in ran.rows] == ["GoldAa", "GoldAa"]
    assert ran.err.splitlines() == [
        "tieredstore: note: --count is now --max",
        "tieredstore: note: --metadata is now --catalogue-file",
    ]
    ran = command.run("metadata", "show", *named(TIER), "--json")
    assert (ran.code, len(ran.rows)) == (0, 1)
    assert ran.err == "tieredstore: note: metadata is now catalogue\n"
    store = tmp_path / "store"
    ran = command.run("put", "T", "--body", "--count", "--store-path", store, "--", "--json")
    assert ran.code == 2  # nothing after -- is an option


def test_an_old_from_with_an_offset_is_still_one(command: Command) -> None:
    def offsets(rows: list[Row]) -> set[object]:
        return {row["queue_offset"] for row in rows}

    words = ("cat", "GoldAa", "--queue", 0, *named(TIER), "--json")
    new = command.run(*words, "--from-offset", 40).done()
    old = command.run(*words, "--from", 40)
    assert (old.code, old.out) == (0, new.out)
    assert "--from with an offset is now --from-offset" in old.err
    assert min(row["queue_offset"] for row in new.rows) == 40
    assert offsets(new.rows) < offsets(java_messages("GoldAa", 0))
    both = command.run(*words, "--from-offset", 4, "--from", "2026-11-20")
    both.refused(2, "--from-offset")


def test_a_local_store_takes_a_topic_as_a_tier_does(command: Command) -> None:
    new = command.golden("cat", CLEAN, "GoldAa", "--json").done()
    old = command.golden("cat", CLEAN, "--topic", "GoldAa", "--json")
    assert (old.code, old.out) == (0, new.out)
    assert old.err == "tieredstore: note: --topic is now the argument TOPIC\n"
    assert {row["topic"] for row in new.rows} == {"GoldAa"}


def test_quiet_leaves_out_notes_and_hints_and_nothing_else(
    command: Command, tmp_path: Path
) -> None:
    words = ("cat", "GoldAa", "--count", 2, *named(TIER))
    loud = command.run(*words)
    assert loud.err
    for said in (("-q", *words), (*words, "--quiet")):
        quiet = command.run(*said)
        assert (quiet.code, quiet.out, quiet.err) == (0, loud.out, "")
    assert command.run(*words).err == loud.err  # the option lasts for one command only
    command.run("-q", "cat", "Nobody", *named(TIER)).refused(3, "no topic 'Nobody'")
    store = tmp_path / "store"
    command.run("put", "T", "--store-path", store, "--body=-q", "-q").done()
    offload = ("offload", "--store-path", store)
    assert "next: " in command.run(*offload).done().out
    assert "next: " not in command.run(*offload, "-q").done().out


def test_verbose_logs_on_stderr_and_changes_nothing_else(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "store"
    put = ("put", "T", "--store-path", store, "--body", "x")
    command.run(*put).done()
    words = ("offload", "--store-path", store, "--seal", "--json")
    ran = command.run(*words, "-v")
    assert (ran.code, len(ran.rows)) == (0, 1)
    assert any(line.startswith("tieredstore: info: ") for line in ran.err.splitlines()), ran.err
    assert all(line.startswith("tieredstore: ") for line in ran.err.splitlines())
    assert command.run(*words).done().rows == ran.rows  # the next command is silent again
    command.run(*put, "--", "-v").refused(2, "-v")  # nothing after -- is an option


def test_help_in_a_process_of_its_own_names_every_verb() -> None:
    with started("--help") as process:
        said, _ = process.communicate()
    assert all(f"\n  {name} " in said.decode() for name in VERBS)
    assert ROOT.is_dir()
