"""The verbs that look after a tier and its catalogue: what they print, change and refuse."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.cli_kit import Command, Ran, picture
from tests.cli.tier_kit import (
    CATALOGUE,
    LEGACY,
    TIER,
    VERBS,
    asked,
    copied,
    named,
    segment_file,
    verb_of,
)
from tests.codec.golden_files import contents
from tests.jobs.job_kit import golden_config
from tests.jobs.load_kit import assert_found, rows_of, staged
from tests.jobs.written_tier import posix_config
from tieredstore.access.queue_upload import (
    STOPPED_QUEUE,
    TRUSTED_SIDE,
    history_note,
    is_asked_to_resume,
)
from tieredstore.access.wiring import open_tier
from tieredstore.cli.output import ExitCode
from tieredstore.driver.runtime import Runtime, SystemClock
from tieredstore.jobs.load import commit_load
from tieredstore.jobs.load_records import LoadDefaults
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.errors import BackendRefusedError
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixFileSegment
from tieredstore.roundlog import upkeep

ROOTS = {"tier-posix": TIER, "legacy": LEGACY}


@pytest.mark.parametrize("name", sorted(ROOTS))
def test_a_whole_tier_has_nothing_to_tell_and_is_not_changed(
    command: Command, tmp_path: Path, name: str
) -> None:
    root = copied(tmp_path / "tier", ROOTS[name])
    before = picture(root)
    ran = asked(command, root, "audit", "--json")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = asked(command, root, "audit").done()
    assert ran.out.endswith("nothing to tell\n")
    assert picture(root) == before


def test_damage_is_shown_and_ends_with_its_own_code(command: Command, root: Path) -> None:
    segment_file(root, "GoldAa/0", "COMMIT_LOG", 13167).unlink()
    before = picture(root)
    ran = asked(command, root, "audit", "--json")
    assert ran.code == 4
    assert "1 found damaged" in ran.err
    assert [(row["kind"], row["severity"], row["base_offset"]) for row in ran.rows] == [
        ("missing", "damage", 13167)
    ]
    ran = asked(command, root, "audit")
    assert "13081 bytes that were committed are gone" in ran.out
    assert picture(root) == before


def test_a_repair_is_done_only_when_it_is_asked_for(command: Command, root: Path) -> None:
    spare = segment_file(root, "GoldAa/0", "COMMIT_LOG", 20_000)
    spare.write_bytes(bytes(500))
    ran = asked(command, root, "audit", "--json")
    assert (ran.code, [row["repaired"] for row in ran.rows]) == (0, [False])
    assert spare.exists()
    then = asked(command, root, "audit").out.splitlines()[-1]
    assert then.startswith("next, with no broker running: tieredstore audit --provider posix ")
    assert then.endswith(" --repair")
    ran = asked(command, root, "audit", "--repair", "--json")
    assert (ran.code, [row["repaired"] for row in ran.rows]) == (0, [True])
    assert not spare.exists()


def test_nothing_is_repaired_under_a_live_writer(command: Command, root: Path) -> None:
    spare = segment_file(root, "GoldAa/0", "COMMIT_LOG", 20_000)
    spare.write_bytes(bytes(500))
    with JsonMetadataStore.open(root / CATALOGUE):
        asked(command, root, "audit", "--repair").refused(5, "stop the broker first")
        assert asked(command, root, "audit").code == 0
        assert asked(command, root, "catalogue", "show").code == 0
    assert spare.exists()


def test_a_lost_catalogue_is_rebuilt(command: Command, root: Path) -> None:
    verbs: list[list[object]] = [["topics"], ["cat", "GoldAa"], ["offset", "GoldAa", 0, 1]]
    before = [asked(command, root, *verb, "--json").out for verb in verbs]
    shutil.rmtree((root / CATALOGUE).parent)
    assert asked(command, root, "audit").code == 3
    ran = asked(command, root, "rebuild", "--json").done()
    assert ran.rows[0]["segment_count"] == 57
    assert {row["topic"]: row["topic_id"] for row in ran.rows[1:]}["GoldAa"] == 1
    assert [asked(command, root, *verb, "--json").out for verb in verbs] == before
    assert asked(command, root, "audit", "--json").out == ""
    again = asked(command, root, "rebuild")
    assert (again.code, again.out) == (5, "")
    assert "is not written over" in again.err


def test_a_wrong_name_makes_no_catalogue(command: Command, root: Path) -> None:
    shutil.rmtree((root / CATALOGUE).parent)
    command.run("rebuild", *named(root, broker="other")).refused(3, "broker-gold-a")
    assert command.run("rebuild", *named(root, cluster="other")).code == 3
    assert command.run("rebuild", *named(root, index_slots=65)).code == 2
    assert (
        not (root / CATALOGUE).exists()
        or not JsonMetadataStore.open(root / CATALOGUE, read_only=True).segments()
    )


def test_what_is_not_sound_is_told_after_a_rebuild(command: Command, root: Path) -> None:
    file = segment_file(root, "GoldAa/0", "COMMIT_LOG", 41521)
    file.write_bytes(file.read_bytes()[:-1])
    shutil.rmtree((root / CATALOGUE).parent)
    ran = asked(command, root, "rebuild")
    assert ran.code == 4
    assert "problem: " in ran.out
    assert "GoldAa/0: 1 queue units" in ran.err


def test_the_catalogue_of_a_tier_in_memory_is_moved_away_before_a_rebuild(
    command: Command, root: Path
) -> None:
    config = golden_config(root)
    beside = (root / CATALOGUE).parent
    shutil.rmtree(beside)
    with closing(open_tier(replace(config, provider="memory"), runtime=Runtime.inline())):
        pass
    asked(command, root, "rebuild").refused(3, "in memory (move it away, with all files of its na")
    shutil.rmtree(beside)
    asked(command, root, "rebuild").done()
    with closing(open_tier(config, runtime=Runtime.inline())) as tier:
        assert tier.metadata.segments()


def test_expired_units_are_a_note_of_a_rebuild(command: Command, root: Path) -> None:
    segment_file(root, "GoldAa/0", "COMMIT_LOG", 0).unlink()
    shutil.rmtree((root / CATALOGUE).parent)
    ran = asked(command, root, "rebuild", "--json").done()
    notes = [row["detail"] for row in ran.rows if row["what"] == "note"]
    assert len(notes) == 1
    assert "units of messages that have expired" in notes[0]


def test_a_rebuild_tells_of_the_log_of_a_bucket(command: Command, root: Path) -> None:
    directory = next(each for each in (root / "tiered").iterdir() if each.is_dir()).name
    (root / "tiered" / ".rounds" / directory / "broker-gold-a" / "log").mkdir(parents=True)
    shutil.rmtree((root / CATALOGUE).parent)
    ran = asked(command, root, "rebuild", "--json").done()
    notes = [row["detail"] for row in ran.rows if row["what"] == "note"]
    assert len(notes) == 1
    assert "`tieredstore migrate` copies them" in notes[0]
    shutil.rmtree((root / CATALOGUE).parent)
    assert "next: " not in asked(command, root, "rebuild").done().out


def test_a_directory_is_certified(command: Command, root: Path) -> None:
    ran = command.run("certify", *named(root), "--json").done()
    assert [row["check"] for row in ran.rows] == [
        *("append", "range", "position", "listing", "delete")
    ]
    assert all(row["passed"] for row in ran.rows)
    assert asked(command, root, "audit", "--json").out == ""


def test_a_bucket_must_be_named(command: Command) -> None:
    command.run("certify", "--provider", "s3").refused(2, "--bucket")


REASON = "the tier has messages up to 20, the local store up to 12"


def test_a_stopped_queue_is_noted_for_the_next_start(command: Command, root: Path) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        path = next(row.path for row in metadata.segments() if row.path.endswith("GoldAa/0"))
        metadata.put_note(STOPPED_QUEUE, path, {"reason": REASON})
    ran = asked(command, root, "resume", "GoldAa", "0").done()
    assert ran.out == "GoldAa/0 is compared at the next start of the broker\n"
    with JsonMetadataStore.open(root / CATALOGUE, read_only=True) as metadata:
        assert is_asked_to_resume(path, metadata)
        assert metadata.note(STOPPED_QUEUE, path) == {"reason": REASON, "resume": True}
    ran = asked(command, root, "audit")
    assert ran.code == 4  # the queue is stopped until then
    assert f"{REASON}; is compared at the next start" in ran.out


def test_a_queue_that_was_not_stopped_is_left_alone(command: Command, root: Path) -> None:
    asked(command, root, "resume", "GoldAa", "0").refused(3, "GoldAa/0 was not stopped")
    before = picture(root)
    asked(command, root, "resume", "GoldAa", "0")
    assert picture(root) == before


@pytest.mark.parametrize("words", [(), ("--trust", "tier"), ("--trust", "local", "--lose-tier")])
def test_history_that_was_adopted_is_compared_at_no_start(
    command: Command, root: Path, words: tuple[str, ...]
) -> None:
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        path = next(row.path for row in metadata.segments() if row.path.endswith("GoldAa/0"))
        metadata.apply([history_note(path, "broker-b")])
    before = picture(root)
    asked(command, root, "resume", "GoldAa", "0", *words).refused(3, "adopted from another broker")
    assert picture(root) == before


def test_a_stop_that_outlived_its_queue_is_no_stop(command: Command, root: Path) -> None:
    """A crash just after a deletion keeps it, and there is nothing to compare at any start."""
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        path = next(row.path for row in metadata.segments() if row.path.endswith("GoldAa/0"))
        gone = path.replace("GoldAa/0", "Gone/7")
        metadata.put_note(STOPPED_QUEUE, gone, {"reason": REASON})
    asked(command, root, "resume", "Gone", "7").refused(3, "the tier has no queue Gone/7")
    assert "nothing to tell" in asked(command, root, "audit").done().out


def test_a_decision_between_two_histories_is_noted_for_the_next_start(
    command: Command, root: Path
) -> None:
    resume = ("resume", "GoldAa", "0", "--trust")
    asked(command, root, *resume, "local").refused(2, "--lose-tier")
    asked(command, root, *resume, "tier", "--lose-tier").refused(2, "--trust local")
    asked(command, root, "resume", "Nobody", "7", "--trust", "tier").refused(3, "Nobody/7")
    for side, words in (("tier", ["tier"]), ("local", ["local", "--lose-tier"])):
        ran = asked(command, root, *resume, *words).done()
        assert "is compared at the next start of the broker; where they differ, the" in ran.out
        with JsonMetadataStore.open(root / CATALOGUE, read_only=True) as metadata:
            [(path, noted)] = metadata.notes(TRUSTED_SIDE).items()
            assert (path.endswith("GoldAa/0"), noted) == (True, side)


@pytest.fixture
def published(command: Command, root: Path) -> Path:
    """The golden tier, published, without its catalogue's file."""
    ran = asked(command, root, "catalogue", "snapshot").done()
    assert ran.out.startswith("generation 1 is in ")
    (root / CATALOGUE).rename(root / "kept.json")
    for path in (root / CATALOGUE).parent.glob("tieredStoreMetadata.json*"):
        path.unlink()
    return root


def elsewhere(command: Command, root: Path, *words: object) -> Ran:
    """Run a verb that looks for the catalogue in the store's own place, not under a given name."""
    return command.run(*words, *named(root, catalogue_file=None, store_path=root / "store"))


def test_what_is_published_serves_every_verb_as_the_file_does(
    command: Command, published: Path
) -> None:
    for words in VERBS:
        kept = published / "kept.json"
        with_file = command.run(*words, *named(published, catalogue_file=kept), "--json")
        without = elsewhere(command, published, *words, "--json")
        assert (without.code, without.out) == (0, with_file.out), words
        assert without.err.count("\n") == 1
        assert "from the published catalogue, generation 1 of " in without.err
    assert elsewhere(command, published, "audit").code == 0


def test_looking_changes_nothing(command: Command, published: Path) -> None:
    before = picture(published)
    others: list[list[object]] = [["catalogue", "show"], ["audit"]]
    for words in VERBS + others:
        elsewhere(command, published, *words)
    for words in VERBS:
        command.run(*words, *named(published, catalogue="rebuild"))
    assert picture(published) == before


@pytest.mark.parametrize("words", VERBS, ids=verb_of)
def test_a_rebuild_in_memory_serves_too(command: Command, root: Path, words: list[object]) -> None:
    whole = asked(command, root, *words, "--json")
    ran = command.run(
        *words, *named(root, catalogue_file="nowhere.json", catalogue="rebuild"), "--json"
    ).done()
    assert len(ran.rows) == len(whole.rows)


def test_show_says_where_it_is_from(command: Command, root: Path) -> None:
    (row,) = asked(command, root, "catalogue", "show", "--json").rows
    assert (row["source"], row["generation"]) == ("file", None)
    assert (row["topic_count"], row["queue_count"]) == (4, 9)
    assert sum(row["segment_counts"].values()) == 57
    assert asked(command, root, "catalogue", "snapshot", "--json").rows[0]["generation"] == 1
    named_published = named(root, catalogue="published")
    (found,) = command.run("catalogue", "show", *named_published, "--json").rows
    assert (found["source"], found["generation"], found["epoch"]) == ("published", 1, 1)
    assert found["written_ms"] > 0
    for name in ("topic_count", "queue_count", "segment_counts", "size"):
        assert found[name] == row[name]
    shown = command.run("catalogue", "show", *named_published).out
    assert "generation 1 of " in shown
    assert "57" not in shown or "segments: " in shown


def test_a_second_snapshot_of_the_same_is_the_same(command: Command, root: Path) -> None:
    for _ in range(2):
        (row,) = asked(command, root, "catalogue", "snapshot", "--json").rows
        assert row["generation"] == 1


def test_a_snapshot_in_a_file_is_what_a_broker_opens(
    command: Command, published: Path, tmp_path: Path
) -> None:
    target = tmp_path / "restored.json"
    assert elsewhere(command, published, "catalogue", "snapshot", "--out", target).code == 0
    assert target.read_bytes() == (published / "kept.json").read_bytes()
    assert elsewhere(command, published, "catalogue", "snapshot", "--out", target).code == 5
    ran = command.run("queues", *named(published, catalogue_file=target), "--json")
    assert len(ran.rows) == 9


def test_without_any_the_error_names_what_to_do(command: Command, root: Path) -> None:
    nowhere = named(root, catalogue_file="nowhere.json")
    for words in (["topics"], ["catalogue", "show"], ["audit"]):
        ran = command.run(*words, *nowhere)
        ran.refused(3, "`rebuild` makes one from the bytes", "--catalogue rebuild")
    command.run("topics", *named(root, catalogue="published")).refused(3)
    assert command.run("topics", *named(root, catalogue="newest")).code == 2
    assert command.run("catalogue", "snapshot", *nowhere).code == 3
    assert not Path("nowhere.json").exists()


def test_a_copy_is_not_repaired(command: Command, published: Path) -> None:
    ran = elsewhere(command, published, "audit", "--repair")
    assert (ran.code, ran.err.count("there is no such file")) == (3, 1)
    assert not (published / CATALOGUE).exists()


def test_a_rebuild_starts_from_what_is_published_and_refuses_to_undo_it(
    command: Command, published: Path
) -> None:
    with JsonMetadataStore.open(published / "kept.json", read_only=True) as before:
        topics = before.topics()
    assert elsewhere(command, published, "rebuild").code == 0
    with JsonMetadataStore.open(published / CATALOGUE, read_only=True) as after:
        assert after.topics() == topics  # times and reserve hours are not in the bytes
    assert elsewhere(command, published, "catalogue", "snapshot").out.startswith("generation 2 ")
    ran = command.run("rebuild", *named(published, catalogue_file=published / "kept.json"))
    ran.refused(5, "move the file away")


def test_a_damaged_one_is_told(command: Command, published: Path) -> None:
    (file,) = (path for path in (published / "tiered" / ".catalog").rglob("*.json"))
    file.write_bytes(file.read_bytes()[:-30])
    elsewhere(command, published, "topics").refused(4, "generation 1: it is damaged")
    assert command.run("topics", *named(published, catalogue="rebuild")).code == 0


def hours_of(command: Command, root: Path, topic: str) -> tuple[int, bool]:
    (row,) = (row for row in asked(command, root, "topics", "--json").rows if row["topic"] == topic)
    return row["reserve_hours"], row["reserve_hours_is_default"]


def test_a_topic_is_given_hours_of_its_own_and_the_default_back(
    command: Command, root: Path
) -> None:
    before = asked(command, root, "topics", "--json").rows
    ran = asked(command, root, "catalogue", "reserve", "GoldAa", 720)
    assert (ran.code, ran.out, ran.err) == (0, "GoldAa is kept 720 hours\n", "")
    assert hours_of(command, root, "GoldAa") == (720, False)
    (row,) = asked(command, root, "catalogue", "reserve", "GoldAa", "default", "--json").rows
    assert (row["reserve_hours"], row["reserve_hours_before"]) == (72, 720)
    assert hours_of(command, root, "GoldAa") == (72, True)
    after = asked(command, root, "topics", "--json").rows
    assert after == before


def test_hours_reach_readers_elsewhere(command: Command, root: Path) -> None:
    """A published catalogue is updated; where none is published, none is made."""
    (unpublished,) = asked(command, root, "catalogue", "reserve", "GoldAa", 7, "--json").rows
    assert unpublished["generation"] is None
    assert not (root / "tiered" / ".catalog").exists()
    assert asked(command, root, "catalogue", "snapshot").code == 0
    ran = asked(command, root, "catalogue", "reserve", "GoldAa", 720)
    assert ran.out == "GoldAa is kept 720 hours; published as generation 2\n"
    rows = command.run("topics", *named(root, catalogue="published"), "--json").rows
    assert [row["reserve_hours"] for row in rows if row["topic"] == "GoldAa"] == [720]


def test_hours_are_not_given_where_another_writer_publishes(command: Command, root: Path) -> None:
    older = root / "older.json"
    older.write_bytes((root / CATALOGUE).read_bytes())
    assert asked(command, root, "catalogue", "snapshot").code == 0
    stale = named(root, catalogue_file=older)
    command.run("catalogue", "reserve", "GoldAa", 720, *stale).refused(5, "another writer's")
    rows = command.run("topics", *stale, "--json").rows
    assert all(row["reserve_hours_is_default"] for row in rows)


def test_no_hours_are_those_of_the_store(command: Command, root: Path) -> None:
    """RocketMQ reads 0 the same way."""
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        catalogue.add_topic("Zero", reserve_hours=0)
    assert hours_of(command, root, "Zero") == (72, True)
    assert "72 (default)" in asked(command, root, "topics").out


def test_a_snapshot_of_another_place_is_not_published(command: Command, root: Path) -> None:
    (root / "empty").mkdir()
    command.run("catalogue", "snapshot", *named(root, path=root / "empty")).refused(3)
    assert list((root / "empty").iterdir()) == []


def test_hours_are_not_given_to_what_is_not_there(command: Command, root: Path) -> None:
    for hours in ("0", "-1", "1.5", "soon", "9" * 30):
        assert asked(command, root, "catalogue", "reserve", "--", "GoldAa", hours).code == 2
    ran = asked(command, root, "catalogue", "reserve", "Nobody", 7)
    ran.refused(3, "no topic 'Nobody' is in this tier; there are: ")
    assert hours_of(command, root, "GoldAa")[1]
    ran = command.run(
        "catalogue", "reserve", "GoldAa", 7, *named(root, catalogue_file="nowhere.json")
    )
    assert ran.code == 3


def settings(tmp_path: Path, root: Path, hours: int) -> Path:
    """The golden tier with other reserve hours."""
    options = dict(zip(named(root)[::2], named(root)[1::2], strict=True))
    file = tmp_path / "tier.toml"
    file.write_text(
        f"""[tieredstore]
provider = "posix"
path = "{options["--path"]}"
metadata_path = "{options["--catalogue-file"]}"
cluster_name = "{options["--cluster"]}"
broker_name = "{options["--broker"]}"
reserve_hours = {hours}
"""
    )
    return file


def test_a_dry_run_changes_not_one_byte(command: Command, tmp_path: Path, root: Path) -> None:
    before = contents(root)
    config = settings(tmp_path, root, 1)
    ran = command.run("expire", "--dry-run", "--config", config, "--json")
    assert ran.code == 0
    assert contents(root) == before
    assert all(row["dry_run"] for row in ran.rows)


def test_what_is_too_old_goes_and_the_rest_can_be_read(
    command: Command, tmp_path: Path, root: Path
) -> None:
    with JsonMetadataStore.open(str(root / CATALOGUE)) as catalogue:
        topics = {row.topic for row in catalogue.topics()}
    config = settings(tmp_path, root, 1)
    foretold = command.run("expire", "--dry-run", "--config", config, "--json").rows
    before = asked(command, root, "segments", "--json").rows
    ran = command.run("expire", "--config", config, "--json").done()
    assert [row | {"dry_run": False} for row in foretold] == ran.rows
    assert ran.rows  # the golden messages are older than an hour
    after = asked(command, root, "segments", "--json").rows
    assert sum(row["size"] for row in after) < sum(row["size"] for row in before)
    for topic in topics:
        left = asked(command, root, "cat", topic)
        assert left.code in (0, ExitCode.NOT_THERE)
    assert asked(command, root, "audit").code == 0
    again = command.run("expire", "--config", config, "--json")
    assert again.rows == []


def test_bytes_that_an_expiry_cannot_delete_are_told(
    command: Command, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(segment: PosixFileSegment) -> NoReturn:
        raise BackendRefusedError(segment.path, "delete", "no permission")

    with monkeypatch.context() as patch:
        patch.setattr(PosixFileSegment, "delete", refused)
        ran = command.run("expire", "--config", settings(tmp_path, root, 1))
    assert ran.code == 0
    assert "unused segments are still there: `audit --repair` deletes them" in ran.err
    assert asked(command, root, "audit", "--repair").code == 0
    assert "nothing to tell" in asked(command, root, "audit").done().out


def test_readers_elsewhere_see_what_went(command: Command, tmp_path: Path, root: Path) -> None:
    assert asked(command, root, "catalogue", "snapshot").out.startswith("generation 1 ")
    assert command.run("expire", "--config", settings(tmp_path, root, 1)).code == 0
    elsewhere = command.run("segments", *named(root, catalogue="published"), "--json")
    # The second one is published before bytes of queues are deleted, the third one before those of
    # index files, the fourth one after.
    assert "generation 4 " in elsewhere.err
    assert elsewhere.rows == asked(command, root, "segments", "--json").rows


def test_who_has_an_older_catalogue_expires_nothing(
    command: Command, tmp_path: Path, root: Path
) -> None:
    config = settings(tmp_path, root, 1)
    older = (root / CATALOGUE).read_bytes()
    assert asked(command, root, "catalogue", "snapshot").code == 0
    for path in (root / CATALOGUE).parent.glob("tieredStoreMetadata.json*"):
        path.unlink()
    (root / CATALOGUE).write_bytes(older)
    before = contents(root / "tiered")
    command.run("expire", "--config", config).refused(ExitCode.REFUSED, "another writer's")
    assert contents(root / "tiered") == before


def test_nothing_goes_that_is_young_enough(command: Command, tmp_path: Path, root: Path) -> None:
    ran = command.run("expire", "--config", settings(tmp_path, root, 1_000_000))
    assert ran.out.endswith("0 segments with 0 B went\n")


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_expiring_without_a_broker_leaves_nothing_that_grows(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """No broker drops what remains: index files, objects of a bucket, entries of its log."""
    monkeypatch.setattr(upkeep, "GRACE_MS", 0)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)
    root = tmp_path / "tiered"
    root.mkdir()
    is_bucket = place == "bucket"
    where = {"provider": "posix", "path": str(root)}
    if is_bucket:
        where = {"provider": "fsspec", "url": f"file://{root}", "path": ""}
    config = posix_config(tmp_path, certify="off", **where)
    queue, now_ms = QueueKey("Orders", 0), SystemClock().now_ms()

    def load(number: int, store_time_ms: int) -> None:
        rows = [rows_of(queue, range(number * 5, number * 5 + 5))]
        times = LoadDefaults(store_time_ms=store_time_ms)
        commit_load(
            config, f"run-{number}", [staged(config, f"run-{number}", 0, rows, defaults=times)]
        )

    for number in range(3):
        load(number, now_ms - 100 * 3_600_000)
    load(3, now_ms)
    file = tmp_path / "tier.toml"
    names = ("store_path", "broker_name", "cluster_name", "certify")
    rows = where | {name: getattr(config, name) for name in names}
    lines = [f'{name} = "{value}"' for name, value in rows.items()]
    file.write_text("\n".join(["[tieredstore]", *lines]))
    assert "6 segments" in command.run("expire", "--config", file).done().out
    for _ in range(30):
        assert "0 segments" in command.run("expire", "--config", file).done().out
    held = [path for path in root.rglob("*") if path.is_file()]
    segments = [path for path in held if path.stat().st_size and not path.suffix]
    assert sum("log" in path.parts for path in held) < 40
    assert sum("load" in path.parts for path in held) == (3 if is_bucket else 0)
    if not is_bucket:
        assert len(segments) == 3  # log, queue and index of what is young
    findings = command.run("audit", "--config", file, "--json").done().rows
    assert {row["path"].split("/")[3] for row in findings} <= {"adopted"}
    assert_found(config, {queue: range(15, 20)})


# A bucket


@pytest.fixture
def bucket(command: Command, tmp_path: Path) -> tuple[Path, list[object]]:
    """A sealed tier in a bucket, and the options that name it on another machine."""
    store, there = tmp_path / "store", tmp_path / "bucket"
    put = ("put", "Orders", "--store-path", store, "--body", "hello", "--repeat", 20)
    assert command.run(*put).code == 0
    settings = '[tieredstore]\nbroker_name = "b"\nprovider = "fsspec"\ncertify = "off"\n'
    for name in ("store", "elsewhere"):
        text = f'url = "file://{there}"\nstore_path = "{tmp_path / name}"\n'
        (tmp_path / f"{name}.toml").write_text(settings + text)
    assert command.run("offload", "--config", tmp_path / "store.toml", "--seal").code == 0
    return there, ["--config", tmp_path / "elsewhere.toml"]


def test_a_bucket_is_audited_and_rebuilt_from_any_machine(
    command: Command, bucket: tuple[Path, list[object]]
) -> None:
    there, tier = bucket
    assert command.run("audit", *tier).code == 0
    assert command.run("audit", "--repair", *tier).code == 0
    again = command.run("rebuild", *tier)
    again.refused(ExitCode.REFUSED, "is not written over")
    shutil.rmtree(there / ".rounds")
    command.run("queues", *tier).refused(ExitCode.NOT_THERE, "taken in by `rebuild`")
    assert "1 topic, 1 queue, " in command.run("rebuild", *tier).out
    assert command.run("audit", *tier).code == 0
    assert command.run("cat", "Orders", "--max", 20, *tier).out.count("Orders/0/") == 20


def test_a_bucket_that_only_offloads_fill_keeps_a_short_log(
    command: Command,
    bucket: tuple[Path, list[object]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "GRACE_MS", 0)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)
    there, tier = bucket
    store = tmp_path / "store"
    for number in range(12):
        command.run("put", "Orders", "--store-path", store, "--body", f"hello {number}").done()
        command.run("offload", "--config", tmp_path / "store.toml").done()
    assert 0 < len(list(there.glob(".rounds/*/b/log/*"))) <= 8 * upkeep.STATES_KEPT + 8
    assert len(list(there.glob(".rounds/*/b/state/*"))) == upkeep.STATES_KEPT
    assert command.run("cat", "Orders", "--max", 40, *tier).out.count("Orders/0/") == 32


def test_a_bucket_that_waits_for_its_cut_over_is_told_to_be_empty(
    command: Command, bucket: tuple[Path, list[object]], tmp_path: Path
) -> None:
    text = (tmp_path / "store.toml").read_text().replace(f"{bucket[0]}", f"{tmp_path}/moved")
    target = tmp_path / "moved.toml"
    target.write_text(text.replace(f"{tmp_path}/store", f"{tmp_path}/new"))
    words = ("migrate", *bucket[1], "--to-config", target)
    assert command.run(*words).code == 0
    ran = command.run("queues", "--config", target)
    assert (ran.code, ran.out, ran.err.count("\n")) == (0, "", 1)
    assert "`migrate` with --cut-over" in ran.err
    ran = command.run("recover", "--config", target)
    assert ("`migrate` with --cut-over" in ran.err, "next:" in ran.out) == (True, False)
    assert command.run(*words, "--cut-over").code == 0
    assert command.run("recover", "--config", target).out.endswith("next: start the broker\n")
    assert "Orders" in command.run("queues", "--config", target).done().out


def test_a_bucket_of_an_older_layout_is_refused_with_one_line(
    command: Command, bucket: tuple[Path, list[object]]
) -> None:
    there, tier = bucket
    shutil.rmtree(there / ".rounds")
    (queue,) = there.glob("*_*/b/Orders/0/CONSUME_QUEUE/*")
    part = there / ".parts" / queue.relative_to(there) / f"{0:020d}-{1000:010d}"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(20))
    ran = command.run("rebuild", *tier)
    ran.refused(ExitCode.REFUSED, "seal them with the version that wrote them")
    assert not (there / ".rounds").exists()
