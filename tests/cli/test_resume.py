"""The verb that lets a stopped queue go on: it asks, and the broker compares."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command, picture
from tests.cli.tier_kit import CATALOGUE, asked, copied
from tieredstore.access.queue_upload import STOPPED_QUEUE, is_asked_to_resume
from tieredstore.metadata.json_store import JsonMetadataStore

REASON = "the tier has messages up to 20, the local store up to 12"


def test_a_stopped_queue_is_noted_for_the_next_start(command: Command, tmp_path: Path) -> None:
    root = copied(tmp_path / "tier")
    with JsonMetadataStore.open(root / CATALOGUE) as metadata:
        path = next(row.path for row in metadata.segments() if row.path.endswith("GoldAa/0"))
        metadata.put_note(STOPPED_QUEUE, path, {"reason": REASON})
    ran = asked(command, root, "resume", "GoldAa", "0")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "GoldAa/0 is compared at the next start of the broker\n"
    with JsonMetadataStore.open(root / CATALOGUE, read_only=True) as metadata:
        assert is_asked_to_resume(path, metadata)
        assert metadata.note(STOPPED_QUEUE, path) == {"reason": REASON, "resume": True}
    ran = asked(command, root, "audit")
    assert ran.code == 4  # until then it is stopped
    assert f"{REASON}; is compared at the next start" in ran.out


def test_a_queue_that_was_not_stopped_is_left_alone(command: Command, tmp_path: Path) -> None:
    root = copied(tmp_path / "tier")
    for topic, number in (("GoldAa", "0"), ("Nobody", "7")):
        ran = asked(command, root, "resume", topic, number)
        assert ran.code == 3
        assert f"{topic}/{number} was not stopped" in ran.err
    before = picture(root)
    asked(command, root, "resume", "GoldAa", "0")
    assert picture(root) == before
