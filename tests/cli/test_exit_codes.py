"""One thing has one exit code, whichever verb meets it: the table of the documents, run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.cli_kit import SIZE_OPTIONS, Command
from tests.cli.tier_kit import CATALOGUE, TIER, named, segment_file
from tests.cli.verb_kit import (
    CLEAN,
    EVERY,
    ON_A_TIER,
    Bench,
    documented_codes,
    golden_copy,
    on_posix,
    told_in_one_line,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore

JOBS = ("verify", "export", "migrate", "reindex")
WRITING_A_FILE = {"report": "--out", "metadata snapshot": "--output"} | dict.fromkeys(
    JOBS, "--report"
)
CHANGING = (
    *("resume", "rebuild", "expire", "reindex", "offload"),
    *("metadata snapshot", "metadata reserve"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder of a test's own, and the verb that is to meet something there."""

    bench: Bench
    folder: Path
    verb: str

    def words(self, **others: object) -> list[str]:
        """The verb on the golden tier; `others` name something else, as in `named`."""
        given = {"path": TIER / "tiered", "metadata": self.bench.catalogue, **others}
        return [*self.bench.words(self.verb), *named(TIER, **given)]

    def with_word(self, place: int, word: object, *more: object) -> list[str]:
        """With another word at this place behind the verb's name."""
        words = self.bench.words(self.verb)
        words[len(self.verb.split()) + place] = str(word)
        tier = named(TIER, metadata=self.bench.catalogue) if self.verb in ON_A_TIER else []
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


@situation("an option that does not exist, or a value that is none", tuple(EVERY))
def _no_option(at: Place) -> list[str]:
    return [*at.bench.words(at.verb), "--no-such-option"]


@situation("settings that make no sense, or another text in their place", tuple(ON_A_TIER))
def _no_settings(at: Place) -> list[str]:
    file = at.folder / "users"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n")
    return [*at.words(), "--config", str(file)]


@situation("no tier is named", all_but("offload"))  # which has one beside its store
def _no_tier(at: Place) -> list[str]:
    return at.bench.words(at.verb)


@situation("no such file of settings", tuple(ON_A_TIER))
def _no_settings_file(at: Place) -> list[str]:
    return [*at.words(), "--config", str(at.folder / "none.toml")]


@situation("no such root", all_but("offload"))  # which makes one
def _no_root(at: Place) -> list[str]:
    return at.words(path=at.folder / "absent")


@situation("no such cluster", all_but("offload", "certify"))  # which make one
def _no_cluster(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    return at.words(cluster="Nobody")


# `ls` and `metadata show` are about all brokers.
@situation("no such broker", all_but("offload", "certify", "ls", "metadata show"))
def _no_broker(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    return at.words(broker="nobody")


NAMED_FIRST = tuple(name for name, verb in ON_A_TIER.items() if verb.topic)
OPTIONAL = ("queues", "segments")
BY_PATTERN = ("verify", "export", "migrate")
OF_LOCAL = ("local cat", "local query", "local offset")


@situation("no such topic", (*NAMED_FIRST, *OPTIONAL, *BY_PATTERN, *OF_LOCAL))
def _no_topic(at: Place) -> list[str]:
    if at.verb in NAMED_FIRST:
        return at.with_word(0, "Nobody")
    if at.verb in ("local query", "local offset"):
        return at.with_word(1, "Nobody")
    words = at.words() if at.verb in ON_A_TIER else at.bench.words(at.verb)
    return [*words, *(["Nobody"] if at.verb in OPTIONAL else ["--topic", "Nobody"])]


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
    return [*words, "--queue", "77", *(["--topic", "GoldAa"] if at.verb == "local cat" else [])]


@situation(
    "no such catalogue: that of `--metadata` is not there, whatever else is",
    all_but("offload", "certify", "rebuild"),  # which make one, or need none
)
def _no_catalogue(at: Place) -> list[str]:
    """A published one is there, and another file."""
    root = golden_copy(at.folder)
    assert at.bench.run("metadata snapshot", *on_posix(at.bench, root)).code == 0
    return at.words(path=root, metadata=at.folder / "nowhere.json")


@situation("no such local store", (*OF_LOCAL, "local info", "offload"))
def _no_store(at: Place) -> list[str]:
    absent = str(at.folder / "absent")
    if at.verb == "offload":
        return ["offload", "--store-path", absent]
    words = [absent if word == str(CLEAN) else word for word in at.bench.words(at.verb)]
    return [word for word in words if word not in SIZE_OPTIONS]


@situation("no folder for the file that is to be written", tuple(WRITING_A_FILE))
def _no_folder(at: Place) -> list[str]:
    return [*at.words(), WRITING_A_FILE[at.verb], str(at.folder / "absent" / "file")]


@situation("a catalogue that makes no sense", all_but("certify"))  # which needs none
def _senseless_catalogue(at: Place) -> list[str]:
    if at.verb == "offload":
        at.bench.prepare(at.verb)
    at.bench.catalogue.write_bytes((TIER / CATALOGUE).read_bytes()[:3000])
    return at.words()


LOSING = ("cat", "audit", "migrate", "verify", "export", "reindex", "rebuild", "offload")


@situation("a segment that is lost or damaged", LOSING)  # others need none of its bytes
def _lost_segment(at: Place) -> list[str]:
    at.bench.prepare(at.verb)
    root = golden_copy(at.folder)
    # A first segment that is gone has expired, as far as the bytes alone can tell.
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


@situation("a file that is there and must be new, or cannot be written", tuple(WRITING_A_FILE))
def _no_file(at: Place) -> list[str]:
    file = at.folder / "there"
    if at.verb == "metadata snapshot":
        file.write_text("kept")
    else:
        file.mkdir()
    return [*at.words(), WRITING_A_FILE[at.verb], str(file)]


ELSEWHERE = {
    "done, also where the answer is that there is nothing": "test_every_verb",
    "a bug: `--debug` shows where": "test_local_failures",
    "the backend refuses, or does not answer": "test_every_verb_on_s3",
    "stdout is closed or full": "test_streams",
    "interrupted": "test_local_failures",
    "nobody reads the output any more": "test_every_verb_refuses",
}


def test_each_row_of_the_table_is_tested() -> None:
    assert sorted([*SITUATIONS, *ELSEWHERE]) == sorted(documented_codes())


@contextmanager
def held_open(at: Place) -> Iterator[None]:
    """The catalogue, or the local store, of another process: a lock of this one is as good."""
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
    if is_open:
        assert "open" in ran.err or "lock" in ran.err
        assert "restore" not in ran.err
        assert "move" not in ran.err


def test_a_catalogue_that_is_named_and_not_there_is_no_other_one(
    command: Command, tmp_path: Path
) -> None:
    at = Place(bench=Bench(command, tmp_path), folder=tmp_path, verb="queues")
    ran = command.run(*_no_catalogue(at))
    ran.refused(3, "nowhere.json: there is no such file")
    root = tmp_path / "tiered"
    for given in ({"metadata": None}, {"metadata": tmp_path / "no.json", "catalogue": "published"}):
        ran = command.run("queues", *named(TIER, path=root, store_path=tmp_path / "no", **given))
        assert ran.code == 0
        assert "published catalogue" in ran.err
