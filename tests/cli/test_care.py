"""The verbs that look after a tier: what they print, what they change and how they end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import CATALOGUE, LEGACY, TIER, asked, copied, named, segment_file
from tieredstore.access.queue_upload import STOPPED_QUEUE, is_asked_to_resume
from tieredstore.metadata.json_store import JsonMetadataStore

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
    ran = asked(command, root, "audit", "--repair", "--json")
    assert (ran.code, [row["repaired"] for row in ran.rows]) == (0, [True])
    assert not spare.exists()


def test_nothing_is_repaired_under_a_live_writer(command: Command, root: Path) -> None:
    spare = segment_file(root, "GoldAa/0", "COMMIT_LOG", 20_000)
    spare.write_bytes(bytes(500))
    with JsonMetadataStore.open(root / CATALOGUE):
        ran = asked(command, root, "audit", "--repair")
        ran.refused(5, "stop the broker first")
        assert asked(command, root, "audit").code == 0
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
    ran = command.run("rebuild", *named(root, broker="other"))
    ran.refused(3, "broker-gold-a")
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


def test_expired_units_are_a_note_of_a_rebuild(command: Command, root: Path) -> None:
    segment_file(root, "GoldAa/0", "COMMIT_LOG", 0).unlink()
    shutil.rmtree((root / CATALOGUE).parent)
    ran = asked(command, root, "rebuild", "--json").done()
    notes = [row["detail"] for row in ran.rows if row["what"] == "note"]
    assert len(notes) == 1
    assert "units of messages that have expired" in notes[0]


def test_a_directory_is_certified(command: Command, root: Path) -> None:
    ran = command.run("certify", *named(root), "--json").done()
    assert [row["check"] for row in ran.rows] == [
        *("append", "range", "position", "listing", "delete")
    ]
    assert all(row["passed"] for row in ran.rows)
    assert asked(command, root, "audit", "--json").out == ""


def test_a_bucket_must_be_named(command: Command) -> None:
    ran = command.run("certify", "--provider", "s3")
    ran.refused(2, "--bucket")


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
    assert ran.code == 4  # until then it is stopped
    assert f"{REASON}; is compared at the next start" in ran.out


def test_a_queue_that_was_not_stopped_is_left_alone(command: Command, root: Path) -> None:
    for topic, number in (("GoldAa", "0"), ("Nobody", "7")):
        ran = asked(command, root, "resume", topic, number)
        assert ran.code == 3
        assert f"{topic}/{number} was not stopped" in ran.err
    before = picture(root)
    asked(command, root, "resume", "GoldAa", "0")
    assert picture(root) == before
