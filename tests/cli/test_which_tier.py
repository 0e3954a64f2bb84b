"""Which tier a command uses: options come first, then the environment, then a settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Ran
from tests.cli.tier_kit import TIER, copied, named
from tests.codec.golden_files import BROKER
from tests.jobs.test_migrate import to
from tieredstore import __version__

COMMON = (
    f"cluster_name = 'GoldenCluster'\nbroker_name = '{BROKER}'\n"
    "index_slot_count = 64\nindex_item_count = 300\nprovider = 'posix'\n"
)
PLACE = "path = 'tiered'\nstore_path = 'store'\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tier; commands run in another folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return copied(tmp_path / "place")


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def topics(ran: Ran) -> list[str]:
    return [row["topic"] for row in ran.done().rows]


def test_a_file_of_the_working_folder_needs_no_name(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.run("topics", "--json").refused(2, "which tier?")
    written(place / "tieredstore.toml", COMMON + PLACE)
    command.run("topics", "--json").refused(2, "which tier?")
    monkeypatch.chdir(place)
    assert "GoldAa" in topics(command.run("topics", "--json"))


def test_a_variable_names_the_file_and_an_option_another(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(place / "any.toml", COMMON + PLACE)
    written(Path("tieredstore.toml"), COMMON + "path = 'nowhere'\nstore_path = 'nowhere'\n")
    command.run("topics", "--json").refused(3, "no such directory: ", "elsewhere/nowhere")
    monkeypatch.setenv("TIEREDSTORE_CONFIG", str(file))
    assert topics(command.run("topics", "--json"))
    command.run("topics", "--config", "tieredstore.toml", "--json").refused(3, "nowhere")
    monkeypatch.setenv("TIEREDSTORE_CONFIG", "gone.toml")
    command.run("topics", "--json").refused(3, "no such file: gone.toml")


def test_a_tier_of_several_is_named(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"[tier.prod]\n{COMMON}{PLACE}[tier.test]\n{COMMON}path = 'nowhere'\n"
    file = written(place / "tieredstore.toml", text)
    monkeypatch.chdir(place)
    assert topics(command.run("topics", "--tier", "prod", "--json"))
    command.run("topics", "--tier", "test", "--json").refused(3, "place/nowhere")
    command.run("topics", "--tier", "nix", "--json").refused(2, "no tier 'nix'", "prod, test")
    command.run("topics", "--json").refused(2, "which of its tiers?", "prod, test")
    monkeypatch.setenv("TIEREDSTORE_TIER", "prod")
    assert topics(command.run("topics", "--json"))
    command.run("topics", "--tier", "test", "--json").refused(3, "place/nowhere")
    # the variable does not apply to a file that the command names
    command.run("topics", "--config", file, "--json").refused(2, "which of its tiers?")


def test_a_tier_needs_a_file_that_can_hold_some(command: Command, place: Path) -> None:
    command.run("topics", "--tier", "prod", "--json").refused(2, "no file says what it is")
    conf = written(place / "broker.conf", "brokerName=a\n")
    words = ("--tier", "prod", "--config", conf, "--json")
    command.run("topics", *words).refused(2, "broker.conf is about one tier")


def test_an_option_counts_more_than_a_variable_and_that_more_than_a_file(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(place / "any.toml", COMMON.replace(BROKER, "of-the-file") + PLACE)
    words = ("topics", "--config", file, "--json")
    command.run(*words).refused(3, "'of-the-file'")
    monkeypatch.setenv("TIEREDSTORE_BROKER_NAME", "of-the-environment")
    command.run(*words).refused(3, "'of-the-environment'")
    assert topics(command.run(*words, "--broker", BROKER))
    monkeypatch.setenv("TIEREDSTORE_INDEX_SLOT_COUNT", "many")
    command.run(*words).refused(2, "TIEREDSTORE_INDEX_SLOT_COUNT", "whole number")


def test_variables_alone_name_a_tier(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PROVIDER": "posix",
        "PATH": str(place / "tiered"),
        "STORE_PATH": str(place / "store"),
        "CLUSTER_NAME": "GoldenCluster",
        "BROKER_NAME": BROKER,
        "BUCKET": "",  # empty counts as not set
    }.items():
        monkeypatch.setenv(f"TIEREDSTORE_{name}", value)
    assert topics(command.run("topics", "--json"))


def test_a_provider_in_the_command_takes_no_file(command: Command, place: Path) -> None:
    """The file describes another tier: its settings, such as the catalogue's place, must not be
    mixed in."""
    written(Path("tieredstore.toml"), "metadata_path = 'of-another.json'\nbucket = 'another'\n")
    assert topics(command.run("topics", *named(place), "--json"))


def test_variables_and_the_file_say_nothing_of_the_target_of_a_move(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(Path("tieredstore.toml"), "reserve_hours = 'no number'\n")
    monkeypatch.setenv("TIEREDSTORE_PATH", str(TIER / "tiered"))
    monkeypatch.setenv("TIEREDSTORE_BUCKET", "of-the-source")
    monkeypatch.setenv("TIEREDSTORE_METADATA_PATH", str(place / "other.json"))
    target = tmp_path / "target"
    source = named(place)
    assert command.run("migrate", *source, *to(target)).code == 0
    assert (target / "tiered").is_dir()
    assert not (place / "other.json").exists()


def test_the_target_of_a_move_is_a_tier_of_the_same_file_or_of_another(
    command: Command, place: Path
) -> None:
    new = "path = 'new'\nstore_path = 'store'\nmetadata_path = 'new.json'\n"
    text = f"[tier.old]\n{COMMON}{PLACE}[tier.new]\n{COMMON}{new}"
    file = written(place / "tieredstore.toml", text)
    old = ("--config", file, "--tier", "old")
    (place / "new").mkdir()
    for target in (("--to-tier", "new"), ("--to-tier", "new", "--to-config", file)):
        ran = command.run("migrate", *old, *target, "--json")
        assert (ran.code, ran.rows[-1]["state"]) == (0, "done"), ran
    assert (place / "new/GoldenCluster").is_dir() or any((place / "new").iterdir())
    command.run("migrate", *old, "--to-tier", "nix").refused(2, "no tier 'nix'", "old, new")
    command.run("migrate", *named(place), "--to-tier", "new").refused(2, "no file says what it is")


def test_the_release_is_said(command: Command) -> None:
    assert command.run("--version").done().out == f"tieredstore {__version__}\n"
