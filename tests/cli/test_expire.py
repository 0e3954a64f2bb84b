"""The verb expire: what is too old goes, the rest stays readable, a dry run changes nothing."""

from __future__ import annotations

from pathlib import Path

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import CATALOGUE, asked, named
from tests.codec.golden_files import contents
from tieredstore.cli.output import ExitCode
from tieredstore.metadata.json_store import JsonMetadataStore


def settings(tmp_path: Path, root: Path, hours: int) -> Path:
    """The golden tier with other reserve hours."""
    options = dict(zip(named(root)[::2], named(root)[1::2], strict=True))
    file = tmp_path / "tier.toml"
    file.write_text(
        f"""[tieredstore]
provider = "posix"
path = "{options["--path"]}"
metadata_path = "{options["--metadata"]}"
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


def test_readers_elsewhere_see_what_went(command: Command, tmp_path: Path, root: Path) -> None:
    assert asked(command, root, "metadata", "snapshot").out.startswith("generation 1 ")
    assert command.run("expire", "--config", settings(tmp_path, root, 1)).code == 0
    elsewhere = command.run("segments", *named(root, catalogue="published"), "--json")
    assert "generation 2 " in elsewhere.err
    assert elsewhere.rows == asked(command, root, "segments", "--json").rows


def test_who_has_an_older_catalogue_expires_nothing(
    command: Command, tmp_path: Path, root: Path
) -> None:
    config = settings(tmp_path, root, 1)
    older = (root / CATALOGUE).read_bytes()
    assert asked(command, root, "metadata", "snapshot").code == 0
    for path in (root / CATALOGUE).parent.glob("tieredStoreMetadata.json*"):
        path.unlink()
    (root / CATALOGUE).write_bytes(older)
    before = contents(root / "tiered")
    ran = command.run("expire", "--config", config)
    ran.refused(ExitCode.REFUSED, "another writer's")
    assert contents(root / "tiered") == before


def test_nothing_goes_that_is_young_enough(command: Command, tmp_path: Path, root: Path) -> None:
    ran = command.run("expire", "--config", settings(tmp_path, root, 1_000_000))
    assert ran.out.endswith("0 segments with 0 bytes went\n")


def test_a_tier_that_a_broker_has_open_is_left_alone(
    command: Command, tmp_path: Path, root: Path
) -> None:
    with JsonMetadataStore.open(str(root / CATALOGUE)):
        ran = command.run("expire", "--config", settings(tmp_path, root, 1))
    ran.refused(ExitCode.REFUSED, "stop the broker first")
