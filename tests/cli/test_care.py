"""The verbs that look after a tier: what they print, what they change and how they end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import CATALOGUE, LEGACY, TIER, asked, copied, named, segment_file
from tieredstore.metadata.json_store import JsonMetadataStore

ROOTS = {"tier-posix": TIER, "legacy": LEGACY}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copied(tmp_path / "tier")


@pytest.mark.parametrize("name", sorted(ROOTS))
def test_a_whole_tier_has_nothing_to_tell_and_is_not_changed(
    command: Command, tmp_path: Path, name: str
) -> None:
    root = copied(tmp_path / "tier", ROOTS[name])
    before = picture(root)
    ran = asked(command, root, "audit", "--json")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = asked(command, root, "audit")
    assert (ran.code, ran.err) == (0, "")
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
        assert (ran.code, ran.out) == (5, "")
        assert "stop the broker first" in ran.err
        assert asked(command, root, "audit").code == 0
    assert spare.exists()


def test_a_lost_catalogue_is_rebuilt(command: Command, root: Path) -> None:
    verbs: list[list[object]] = [["topics"], ["cat", "GoldAa"], ["offset", "GoldAa", 0, 1]]
    before = [asked(command, root, *verb, "--json").out for verb in verbs]
    shutil.rmtree((root / CATALOGUE).parent)
    assert asked(command, root, "audit").code == 3
    ran = asked(command, root, "rebuild", "--json")
    assert (ran.code, ran.err) == (0, "")
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
    assert ran.code == 3
    assert "broker-gold-a" in ran.err
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
    ran = asked(command, root, "rebuild", "--json")
    assert (ran.code, ran.err) == (0, "")
    notes = [row["detail"] for row in ran.rows if row["what"] == "note"]
    assert len(notes) == 1
    assert "units of messages that have expired" in notes[0]


def test_a_directory_is_certified(command: Command, root: Path) -> None:
    ran = command.run("certify", *named(root), "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [row["check"] for row in ran.rows] == [
        *("append", "range", "position", "listing", "delete")
    ]
    assert all(row["passed"] for row in ran.rows)
    assert asked(command, root, "audit", "--json").out == ""


def test_a_bucket_must_be_named(command: Command) -> None:
    ran = command.run("certify", "--provider", "s3")
    assert (ran.code, ran.out) == (2, "")
    assert "--bucket" in ran.err
