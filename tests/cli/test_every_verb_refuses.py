"""Wrong words, wrong places and damage, for every verb: one line that says so, and its code."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Any, get_origin

import pytest

from tests.cli.cli_kit import SIZE_OPTIONS, Command, picture, started
from tests.cli.tier_kit import CATALOGUE, TIER, VERBS, named, segment_file, verb_of
from tests.cli.verb_kit import (
    CLEAN,
    EVERY,
    ON_A_LOCAL_STORE,
    ON_A_TIER,
    Bench,
    commands,
    golden_copy,
    on_posix,
    told_in_one_line,
)

LOOKING = {verb_of(words) for words in VERBS}


@pytest.fixture
def bench(command: Command, tmp_path: Path) -> Bench:
    return Bench(command, tmp_path)


def with_words(name: str, place: int, word: object, bench: Bench) -> list[str]:
    """The verb's words with another one at this place behind its name."""
    words = bench.words(name)
    words[len(name.split()) + place] = str(word)
    return words


@pytest.mark.parametrize("name", [name for name, verb in ON_A_TIER.items() if verb.topic])
def test_an_unknown_topic_is_told_with_those_there_are(
    command: Command, bench: Bench, name: str
) -> None:
    words = with_words(name, 0, "Nobody", bench)
    ran = command.run(*words, *named(TIER, metadata=bench.catalogue), "--json")
    assert (ran.code, ran.out, told_in_one_line(ran)) == (3, "", True), ran
    assert "no topic 'Nobody'" in ran.err or "Nobody/0 was not stopped" in ran.err


@pytest.mark.parametrize("name", [name for name, verb in ON_A_TIER.items() if verb.queue])
def test_an_unknown_queue_is_told(command: Command, bench: Bench, name: str) -> None:
    for queue, code in (("77", 3), ("zero", 2), ("-1", 2), ("9" * 30, 3)):
        words = with_words(name, 1, queue, bench)
        ran = command.run(*words, *named(TIER, metadata=bench.catalogue), "--json")
        assert (ran.code, ran.out, told_in_one_line(ran)) == (code, "", True), ran


@pytest.mark.parametrize("offset", ["-1", "x", "1.5"])
def test_an_offset_that_is_none_is_told(command: Command, offset: str) -> None:
    ran = command.run("why", "GoldAa", "0", offset, *named(TIER))
    assert (ran.code, ran.out, told_in_one_line(ran)) == (2, "", True), ran


def test_an_offset_out_of_range_is_an_answer(command: Command) -> None:
    for offset in (10**6, 2**63 - 1, 10**30):
        ran = command.run("why", "GoldAa", "0", offset, *named(TIER), "--json").done()
        assert ran.rows[0]["problem"] is None
        ran = command.run("cat", "GoldAa", "--from", min(offset, 10**12 - 1), *named(TIER))
        assert (ran.code, ran.out, ran.err) == (0, "", "")


@pytest.mark.parametrize("name", ON_A_TIER)
def test_a_tier_that_makes_no_sense_is_told(
    command: Command, bench: Bench, tmp_path: Path, name: str
) -> None:
    words = bench.words(name)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "half.toml").write_text('provider = "posix"\nbuket = 3')
    (tmp_path / "torn.toml").write_text("provider = [")
    bad: list[tuple[set[int], list[str]]] = [
        ({2}, ["--config", "half.toml"]),
        ({2}, ["--config", "torn.toml"]),
        ({2}, [*on_posix(bench, tmp_path), "--provider", "floppy"]),
        ({2}, ["--provider", "s3"]),
    ]
    if name == "offload":
        bench.prepare(name)
    if name != "offload":  # it makes a tier where there is none
        bad.append(({3}, on_posix(bench, tmp_path / "file")))
    if name not in ("offload", "certify"):
        bad.append(({2, 3}, on_posix(bench, tmp_path / "nothing")))
    for codes, given in bad:
        tier = [str(tmp_path / word) if word.endswith(".toml") else word for word in given]
        ran = command.run(*words, *tier)
        assert ran.code in codes, (tier, ran)
        assert told_in_one_line(ran), (tier, ran)


@pytest.mark.parametrize("name", ON_A_TIER)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"\0" * 4096, b"[1, 2]", b'{"topicMetadataTable": 7}'),
        (TIER / CATALOGUE).read_bytes()[:3000],
    ],
    ids=["empty", "cut at once", "zeros", "a list", "another shape", "cut in half"],
)
def test_a_catalogue_that_makes_no_sense_is_told(
    bench: Bench, tmp_path: Path, name: str, data: bytes
) -> None:
    if name == "certify":
        return  # asks for none: the next test shows that it does not
    if name == "offload":
        bench.prepare(name)
    bench.catalogue.write_bytes(data)
    ran = bench.run(name, *on_posix(bench, TIER / "tiered"))
    assert ran.code == ON_A_TIER[name].damaged_catalogue, ran.err
    assert told_in_one_line(ran), ran.err
    assert "catalogue" in ran.err
    assert (len(ran.out) > 0) == (name == "ls")
    if name in LOOKING:
        assert "restore the catalogue, or name another with --metadata" in ran.err
        assert bench.catalogue.read_bytes() == data


@pytest.mark.parametrize("name", ON_A_TIER)
def test_a_catalogue_that_is_not_there_is_told(bench: Bench, tmp_path: Path, name: str) -> None:
    bench.prepare(name)
    for file in tmp_path.glob("tieredStoreMetadata.json*"):
        file.unlink()
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path)), "--json")
    assert ran.code == ON_A_TIER[name].without_catalogue, ran.err
    assert ran.code == 0 or told_in_one_line(ran), ran.err
    if name in LOOKING:
        assert "there is no such file; name the catalogue with --metadata" in ran.err
        assert len(ran.rows) == (57 if name == "ls" else 0)
        assert all(row["catalogued"] is None for row in ran.rows)


# Where a log segment is gone that is not the last one; others need none of its bytes.
LOST = {"cat": 4, "audit": 4, "migrate": 4, "verify": 4, "export": 4, "reindex": 4}
LOST["offload"] = 4  # nothing more is uploaded to this queue
LOST["rebuild"] = 0  # to the bytes alone a first segment that is gone has expired


@pytest.mark.parametrize("name", ON_A_TIER)
def test_a_segment_that_is_gone_is_damage_and_one_line(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    bench.prepare(name)
    root = golden_copy(tmp_path)
    segment_file(tmp_path, "GoldAa/0", "COMMIT_LOG", 0).unlink()
    ran = bench.run(name, *on_posix(bench, root))
    assert ran.code == LOST.get(name, ran.code), ran.err
    assert ran.code in (0, 4, 5), ran.err
    assert not ran.err if ran.code == 0 else told_in_one_line(ran), ran.err


@pytest.mark.parametrize("name", ON_A_LOCAL_STORE)
def test_a_local_store_that_is_none_is_told(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "absent", tmp_path / "file", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        words = [
            str(place) if word == CLEAN else word
            for word in EVERY[name].words
            if word not in SIZE_OPTIONS
        ]
        if name == "put":
            if place.name != "file":
                continue  # it makes one
            words[words.index("{place}/made")] = str(place)
        ran = command.run(*name.split(), *words)
        assert ran.code == (5 if name == "put" else 3), ran
        assert told_in_one_line(ran)


@pytest.mark.parametrize("name", EVERY)
def test_debug_shows_where_for_every_verb(command: Command, name: str) -> None:
    for words, debug in (([], False), (["--debug"], True)):
        ran = command.run(*name.split(), "--no-such-option", *words)
        assert (ran.code, ran.out) == (2, "")
        assert told_in_one_line(ran, debug=debug), ran.err


@pytest.mark.parametrize("name", EVERY)
def test_numbers_that_are_none_are_told_for_every_option(
    command: Command, bench: Bench, name: str
) -> None:
    for option in commands()[name].params:
        annotation = option.type_descriptor.annotation
        kind = get_origin(annotation) or annotation
        if option.param_type_name != "option" or not issubclass(kind, int | float | Enum):
            continue
        if kind is bool:
            continue
        ran = command.run(*bench.words(name), option.opts[0], "many")
        ran.refused(2, option.opts[0])


CLOSED = ["topics", "cat", "certify", "verify", "local cat", "local info", "metadata show", "cost"]


@pytest.mark.parametrize("name", CLOSED)
def test_nobody_reading_any_more_is_no_error(bench: Bench, name: str) -> None:
    tier = named(TIER) if name in ON_A_TIER else []
    reading, writing = os.pipe()
    os.close(reading)
    with started(*bench.words(name), *tier, "--json", stdout=writing) as process:
        os.close(writing)
        _, said = process.communicate()
    assert (process.returncode, said) == (141, b"")


def test_a_target_that_is_not_cut_over_is_told_to_be_so(command: Command, bench: Bench) -> None:
    words = bench.words("migrate")
    root, catalogue = words[4], words[6]
    assert command.run(*words, *named(TIER, metadata=bench.catalogue)).code == 0
    for verb in ("queues", "verify", "migrate"):
        others = bench.words("migrate")[1:] if verb == "migrate" else []
        ran = command.run(verb, *others, *named(TIER, path=root, metadata=catalogue))
        assert (ran.code, ran.out, told_in_one_line(ran)) == (3, "", True), ran
        assert "`migrate` with --cut-over" in ran.err
        assert "rebuild" not in ran.err


def test_no_row_here_touched_what_java_wrote(bench: Bench) -> None:
    before: Any = picture(TIER)
    bench.run("metadata reserve", *named(TIER, metadata=bench.catalogue))
    assert picture(TIER) == before
