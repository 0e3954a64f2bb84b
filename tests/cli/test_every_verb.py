"""Every verb, on stores that Java wrote: what it does, how it refuses, how it ends."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import get_origin

import pytest

from tests.cli.cli_kit import ROOT, SIZE_OPTIONS, Command, picture, started
from tests.cli.tier_kit import CATALOGUE, TIER, VERBS, named, segment_file, verb_of
from tests.cli.verb_kit import (
    CLEAN,
    EVERY,
    ON_A_LOCAL_STORE,
    ON_A_TIER,
    Bench,
    commands,
    documented_codes,
    golden_copy,
    on_posix,
    told_in_one_line,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore

LOOKING = [verb_of(words) for words in VERBS]
LOSING = ("cat", "audit", "migrate", "verify", "export", "reindex", "rebuild", "offload")


@pytest.fixture
def bench(command: Command, tmp_path: Path) -> Bench:
    return Bench(command, tmp_path)


def test_every_verb_has_a_row() -> None:
    assert sorted(EVERY) == sorted(commands())


@pytest.mark.parametrize("name", ON_A_TIER)
def test_a_verb_does_its_work_on_a_tier_of_java(bench: Bench, tmp_path: Path, name: str) -> None:
    before = picture(TIER)
    bench.prepare(name)
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path)), "--json").done()
    assert ON_A_TIER[name].holds(ran.rows), ran.out[:1000]
    assert all(isinstance(row, dict) for row in ran.rows)
    assert picture(TIER) == before


@pytest.mark.parametrize("name", ON_A_TIER)
def test_people_are_told_in_words(bench: Bench, tmp_path: Path, name: str) -> None:
    bench.prepare(name)
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path))).done()
    assert ran.out.strip()
    assert "\x1b" not in ran.out  # no colours if stdout is not a terminal
    assert not ran.out.startswith("{")


@pytest.mark.parametrize("name", ON_A_LOCAL_STORE)
def test_a_verb_does_its_work_on_a_local_store_of_java(bench: Bench, name: str) -> None:
    before = picture(CLEAN)
    ran = bench.run(name, "--json").done()
    assert ON_A_LOCAL_STORE[name].holds(ran.rows), ran.out[:1000]
    assert bench.run(name).done().out.strip()
    assert picture(CLEAN) == before


def test_a_local_store_of_java_is_offloaded_with_its_broker_conf(
    command: Command, tmp_path: Path
) -> None:
    store = shutil.copytree(CLEAN, tmp_path / "store")
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir={store}\ntieredStoreFilePath={tmp_path / 'tier'}\nbrokerName=b\n"
        "tieredBackendServiceProvider=posix\nmappedFileSizeCommitLog=32768\n"
        "mappedFileSizeConsumeQueue=400\nmaxHashSlotNum=101\nmaxIndexNum=400\n"
    )
    (tmp_path / "tier").mkdir()
    ran = command.run("offload", "--config", conf, "--json").done()
    uploaded = [row for row in ran.rows if row["committed_offset"]]  # system topics stay local
    assert all(row["committed_offset"] == row["max_offset"] for row in uploaded)
    count = sum(row["max_offset"] for row in uploaded)
    assert count > 500
    queues = command.run("queues", "--config", conf, "--json").rows
    assert sum(row["max_offset"] for row in queues) == count


@pytest.mark.parametrize("name", [name for name, verb in ON_A_TIER.items() if verb.queue])
def test_a_queue_that_is_no_number_is_refused(command: Command, bench: Bench, name: str) -> None:
    for queue, code in (("zero", 2), ("-1", 2), ("9" * 30, 3)):
        words = bench.words(name)
        words[len(name.split()) + 1] = queue
        command.run(*words, *named(TIER, catalogue_file=bench.catalogue), "--json").refused(code)


@pytest.mark.parametrize("offset", ["-1", "x", "1.5"])
def test_an_offset_that_is_none_is_told(command: Command, offset: str) -> None:
    command.run("why", "GoldAa", "0", offset, *named(TIER)).refused(2)


def test_an_offset_out_of_range_is_an_answer(command: Command) -> None:
    for offset in (10**6, 2**63 - 1, 10**30):
        ran = command.run("why", "GoldAa", "0", offset, *named(TIER), "--json").done()
        assert ran.rows[0]["problem"] is None
        ran = command.run("cat", "GoldAa", "--from-offset", offset, *named(TIER))
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
    if name != "offload":  # it makes a missing tier
        bad.append(({3}, on_posix(bench, tmp_path / "file")))
    if name not in ("offload", "certify"):
        bad.append(({2, 3}, on_posix(bench, tmp_path / "nothing")))
    for codes, given in bad:
        tier = [str(tmp_path / word) if word.endswith(".toml") else word for word in given]
        ran = command.run(*words, *tier)
        assert ran.code in codes, (tier, ran)
        assert told_in_one_line(ran), (tier, ran)


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"\0" * 4096, b"[1, 2]", b'{"topicMetadataTable": 7}'),
        (TIER / CATALOGUE).read_bytes()[:3000],
    ],
    ids=["empty", "cut at once", "zeros", "a list", "another shape", "cut in half"],
)
def test_a_catalogue_that_makes_no_sense_is_told_and_left_as_it_is(
    bench: Bench, name: str, data: bytes
) -> None:
    bench.catalogue.write_bytes(data)
    ran = bench.run(name, *on_posix(bench, TIER / "tiered"))
    assert (ran.code, told_in_one_line(ran)) == (4, True), ran.err
    assert (len(ran.out) > 0) == (name == "ls")
    assert "restore the catalogue, or name another with --catalogue-file" in ran.err
    assert bench.catalogue.read_bytes() == data


@pytest.mark.parametrize("name", [*LOOKING, "rebuild", "certify", "offload"])
def test_a_catalogue_that_is_not_there_is_told(bench: Bench, tmp_path: Path, name: str) -> None:
    bench.prepare(name)
    bench.catalogue.unlink(missing_ok=True)
    ran = bench.run(name, *on_posix(bench, golden_copy(tmp_path)), "--json")
    assert ran.code == ON_A_TIER[name].without_catalogue, ran.err
    if name in LOOKING:
        assert told_in_one_line(ran), ran.err
        assert "there is no such file; name the catalogue with --catalogue-file" in ran.err
        assert len(ran.rows) == (57 if name == "ls" else 0)
        assert all(row["catalogued"] is None for row in ran.rows)


@pytest.mark.parametrize("name", [name for name in ON_A_TIER if name not in LOSING])
def test_a_segment_that_is_gone_and_not_needed_is_one_line_at_most(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    bench.prepare(name)
    root = golden_copy(tmp_path)
    segment_file(tmp_path, "GoldAa/0", "COMMIT_LOG", 0).unlink()
    ran = bench.run(name, *on_posix(bench, root))
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
                continue  # it makes one itself
            words[words.index("{place}/made")] = str(place)
        ran = command.run(*name.split(), *words)
        assert ran.code == (5 if name == "put" else 3), ran
        assert told_in_one_line(ran)


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
        command.run(*bench.words(name), option.opts[0], "many").refused(2, option.opts[0])


@pytest.mark.parametrize("name", ["cat", "catalogue show", "help"])
def test_nobody_reading_any_more_is_no_error(bench: Bench, name: str) -> None:
    """`cat` meets it while it writes rows, `catalogue show` when it sends the last at its end, and
    Typer while it writes a help."""
    words = ["--help"] if name == "help" else [*bench.words(name), *named(TIER), "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    with started(*words, stdout=writing) as process:
        os.close(writing)
        _, said = process.communicate()
    assert (process.returncode, said) == (141, b"")


def test_a_target_that_is_not_cut_over_is_told_to_be_so(command: Command, bench: Bench) -> None:
    words = bench.words("migrate")
    root, catalogue = words[4], words[6]
    assert command.run(*words, *named(TIER, catalogue_file=bench.catalogue)).code == 0
    for verb in ("queues", "verify", "migrate"):
        others = bench.words("migrate")[1:] if verb == "migrate" else []
        ran = command.run(verb, *others, *named(TIER, path=root, catalogue_file=catalogue))
        assert (ran.code, ran.out, told_in_one_line(ran)) == (3, "", True), ran
        assert "`migrate` with --cut-over" in ran.err
        assert "rebuild" not in ran.err


JOBS = ("verify", "export", "migrate", "reindex")
WRITING_A_FILE = {"report": "--out", "catalogue snapshot": "--out"} | dict.fromkeys(
    JOBS, "--report"
)
CHANGING = (
    *("resume", "rebuild", "expire", "reindex", "offload"),
    *("catalogue snapshot", "catalogue reserve"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A test's own folder, and the verb that is to meet a situation there."""

    bench: Bench
    folder: Path
    verb: str

    def words(self, **others: object) -> list[str]:
        """The verb's words on the golden tier; `others` replace options, as in `named`."""
        given = {"path": TIER / "tiered", "catalogue_file": self.bench.catalogue, **others}
        return [*self.bench.words(self.verb), *named(TIER, **given)]

    def with_word(self, place: int, word: object, *more: object) -> list[str]:
        """The words with another one at this place after the verb's name."""
        words = self.bench.words(self.verb)
        words[len(self.verb.split()) + place] = str(word)
        tier = named(TIER, catalogue_file=self.bench.catalogue) if self.verb in ON_A_TIER else []
        return [*words, *map(str, more), *tier]


Meeting = Callable[[Place], list[str]]
SITUATIONS: dict[str, tuple[tuple[str, ...], Meeting]] = {}


def situation(what: str, verbs: Iterator[str] | tuple[str, ...]) -> Callable[[Meeting], Meeting]:
    def noted(meeting: Meeting) -> Meeting:
        SITUATIONS[what] = (tuple(verbs), meeting)
        return meeting

    return noted


def all_but(*others: str) -> tuple[str, ...]:
    return tuple(name for name in ON_A_TIER if name not in others)


@situation("an unknown option, or an invalid value", tuple(EVERY))
def _no_option(at: Place) -> list[str]:
    return [*at.bench.words(at.verb), "--no-such-option"]


@situation("invalid settings, or a file that holds none", tuple(ON_A_TIER))
def _no_settings(at: Place) -> list[str]:
    file = at.folder / "users"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n")
    return [*at.words(), "--config", str(file)]


@situation("no tier is named", all_but("offload"))  # `offload` has one beside its store
def _no_tier(at: Place) -> list[str]:
    return at.bench.words(at.verb)


@situation("no such settings file", tuple(ON_A_TIER))
def _no_settings_file(at: Place) -> list[str]:
    return [*at.words(), "--config", str(at.folder / "none.toml")]


@situation("no such root", all_but("offload"))  # `offload` makes one
def _no_root(at: Place) -> list[str]:
    return at.words(path=at.folder / "absent")


@situation("no such cluster", all_but("offload", "certify"))  # these make one
def _no_cluster(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    return at.words(cluster="Nobody")


# `ls` and `catalogue show` are about all brokers.
@situation("no such broker", all_but("offload", "certify", "ls", "catalogue show"))
def _no_broker(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    return at.words(broker="nobody")


NAMED_FIRST = tuple(name for name, verb in ON_A_TIER.items() if verb.topic)
OPTIONAL = ("queues", "groups", "segments")
BY_PATTERN = ("verify", "export", "migrate")
OF_LOCAL = ("local cat", "local query", "local offset")


@situation("no such topic", (*NAMED_FIRST, *OPTIONAL, *BY_PATTERN, *OF_LOCAL))
def _no_topic(at: Place) -> list[str]:
    if at.verb in NAMED_FIRST:
        return at.with_word(0, "Nobody")
    if at.verb in ("local query", "local offset"):
        return at.with_word(1, "Nobody")
    words = at.words() if at.verb in ON_A_TIER else at.bench.words(at.verb)
    return [*words, *(["Nobody"] if at.verb in (*OPTIONAL, "local cat") else ["--topic", "Nobody"])]


NAMED_SECOND = tuple(name for name, verb in ON_A_TIER.items() if verb.queue)


@situation("no such queue", (*NAMED_SECOND, "segments", "cat", "local cat", "local offset"))
def _no_queue(at: Place) -> list[str]:
    if at.verb in NAMED_SECOND:
        return at.with_word(1, 77)
    if at.verb == "local offset":
        return at.with_word(2, 77)
    if at.verb == "segments":
        return [*at.words(), "GoldAa", "77"]
    words = at.words() if at.verb in ON_A_TIER else at.bench.words(at.verb)
    return [*words, "--queue", "77", *(["GoldAa"] if at.verb == "local cat" else [])]


@situation(
    "no such catalogue: the one of `--catalogue-file` is missing, whatever else exists",
    all_but("certify", "rebuild", "recover"),  # these make one, or need none
)
def _no_catalogue(at: Place) -> list[str]:
    """A published catalogue and another file exist."""
    root = golden_copy(at.folder)
    assert at.bench.run("catalogue snapshot", *on_posix(at.bench, root)).code == 0
    return at.words(path=root, catalogue_file=at.folder / "nowhere.json")


@situation("no such local store", (*OF_LOCAL, "local info", "offload"))
def _no_store(at: Place) -> list[str]:
    absent = str(at.folder / "absent")
    if at.verb == "offload":
        return ["offload", "--store-path", absent]
    words = [absent if word == str(CLEAN) else word for word in at.bench.words(at.verb)]
    return [word for word in words if word not in SIZE_OPTIONS]


@situation("no folder for the output file", tuple(WRITING_A_FILE))
def _no_folder(at: Place) -> list[str]:
    return [*at.words(), WRITING_A_FILE[at.verb], str(at.folder / "absent" / "file")]


@situation("an invalid catalogue", all_but("certify"))  # it needs none
def _senseless_catalogue(at: Place) -> list[str]:
    if at.verb == "offload":
        at.bench.prepare(at.verb)
    at.bench.catalogue.write_bytes((TIER / CATALOGUE).read_bytes()[:3000])
    return at.words()


@situation("a lost or damaged segment", LOSING)  # others need none of its bytes
def _lost_segment(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    root = golden_copy(at.folder)
    # By its bytes alone, a tier without its first segment looks as if that had expired.
    base = 13167 if at.verb == "rebuild" else 0
    segment_file(at.folder, "GoldAa/0", "COMMIT_LOG", base).unlink()
    return at.words(path=root)


@situation(
    "a catalogue or a local store that another process has open", (*CHANGING, "audit", "put")
)
def _open_elsewhere(at: Place) -> list[str]:
    if at.verb == "put":
        return at.bench.words("put")
    if at.verb != "rebuild":
        at.bench.prepare(at.verb)
    words = at.words(path=golden_copy(at.folder))
    return [*words, "--repair"] if at.verb == "audit" else words


@situation(
    "an output file that exists and must be new, or that cannot be written", tuple(WRITING_A_FILE)
)
def _no_file(at: Place) -> list[str]:
    file = at.folder / "there"
    if at.verb == "catalogue snapshot":
        file.write_text("kept")
    else:
        file.mkdir()
    return [*at.words(), WRITING_A_FILE[at.verb], str(file)]


ELSEWHERE = {
    "done, also when nothing was found": "test_every_verb",
    "a bug: `--debug` shows where": "test_main",
    "the backend refuses, or does not answer": "test_every_verb_on_s3",
    "stdout is closed or full": "test_output",
    "interrupted": "test_main",
    "the reader of the output has gone": "test_every_verb",
}


def test_each_row_of_the_table_is_tested() -> None:
    assert sorted([*SITUATIONS, *ELSEWHERE]) == sorted(documented_codes())


@contextmanager
def held_open(at: Place) -> Iterator[None]:
    """Hold the catalogue or the local store open; this process's lock works like another's."""
    if at.verb != "put":
        with JsonMetadataStore.open(at.bench.catalogue):
            yield
        return
    store = LocalMessageStore(
        LocalConfig(
            store_path=str(at.folder / "made"), commit_log_file_bytes=1 << 20,
            queue_file_bytes=20_000, index_slot_count=100, index_item_count=400,
        ),
        Runtime.inline(),
    )  # fmt: skip
    store.load()
    try:
        yield
    finally:
        store.shutdown()


@pytest.mark.parametrize(
    ("what", "verb"), [(what, verb) for what, (verbs, _) in SITUATIONS.items() for verb in verbs]
)
def test_every_verb_ends_with_the_code_of_the_table(
    command: Command, tmp_path: Path, what: str, verb: str
) -> None:
    at = Place(bench=Bench(command, tmp_path), folder=tmp_path, verb=verb)
    words = SITUATIONS[what][1](at)
    is_open = "another process" in what
    with held_open(at) if is_open else nullcontext():
        ran = command.run(*words)
    assert ran.code == documented_codes()[what], ran
    assert told_in_one_line(ran), ran.err
    shows_what_is_sound = verb == "ls" or what == "a lost or damaged segment"
    assert not ran.out or shows_what_is_sound, ran.out
    if is_open:
        assert ("stop the broker first" in ran.err) == (verb != "put")
        assert "open" in ran.err or "lock" in ran.err
        assert "restore" not in ran.err
        assert "move" not in ran.err


def test_a_catalogue_that_is_named_and_not_there_is_no_other_one(
    command: Command, tmp_path: Path
) -> None:
    at = Place(bench=Bench(command, tmp_path), folder=tmp_path, verb="queues")
    command.run(*_no_catalogue(at)).refused(3, "nowhere.json: there is no such file")
    root = tmp_path / "tiered"
    for given in (
        {"catalogue_file": None},
        {"catalogue_file": tmp_path / "no.json", "catalogue": "published"},
    ):
        ran = command.run("queues", *named(TIER, path=root, store_path=tmp_path / "no", **given))
        assert ran.code == 0
        assert "published catalogue" in ran.err


_EXAMPLE = re.compile(r"Example: tieredstore (.+?)(?:\n\n|\Z)", re.DOTALL)


def example(command: Command, name: str) -> list[str]:
    ran = command.run(*name.split(), "--help").done()
    (text,) = _EXAMPLE.findall(ran.out)
    return shlex.split(text)


@pytest.mark.parametrize("name", EVERY)
def test_the_example_of_a_verb_is_one_that_the_command_takes(command: Command, name: str) -> None:
    words = name.split()
    said = example(command, name)
    assert said[: len(words)] == words
    verb, words = commands()[name], said[len(words) :]
    assert verb.make_context(name, [*words]).params  # parsed, converted and checked, but not run
    with pytest.raises(Exception, match="no-such-option"):
        verb.make_context(name, [*words, "--no-such-option"])


@pytest.mark.parametrize("name", EVERY)
def test_every_verb_takes_json(name: str) -> None:
    assert any("--json" in option.opts for option in commands()[name].params)


@pytest.mark.parametrize("name", ON_A_TIER)
def test_every_verb_of_a_tier_says_how_to_name_one(command: Command, name: str) -> None:
    said = command.run(*name.split(), "--help").done().out
    for option in ("--config FILE", "--path ROOT", "--catalogue-file FILE", "--broker NAME"):
        assert option in said


def test_the_family_of_local_has_an_example_too(command: Command) -> None:
    assert "Example: tieredstore local " in command.run("local", "--help").done().out


ASKED = {
    "bash": {"COMP_WORDS": "tieredstore se", "COMP_CWORD": "1"},
    "zsh": {"_TYPER_COMPLETE_ARGS": "tieredstore se"},
    "fish": {"_TYPER_COMPLETE_ARGS": "tieredstore se", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}


def completed(**words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tieredstore"],
        env={**os.environ, **words, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ASKED)
def test_verbs_are_completed(shell: str) -> None:
    told = completed(_TIEREDSTORE_COMPLETE=f"complete_{shell}", **ASKED[shell])
    assert "segments" in told
    assert "topics" not in told


@pytest.mark.parametrize("shell", ASKED)
def test_each_shell_gets_its_script(shell: str) -> None:
    script = completed(_TIEREDSTORE_COMPLETE=f"source_{shell}")
    assert "tieredstore" in script
    assert f"complete_{shell}" in script
    program = shutil.which(shell)
    if program is not None:  # without it, nothing here can read the script
        read = subprocess.run([program, "-n"], input=script, text=True, check=False)
        assert read.returncode == 0


def test_the_help_says_how_to_get_it(command: Command) -> None:
    assert "--show-completion" in command.run("--help").out
