"""docs/configuration.md agrees with the settings, and its example files are read as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.docs.configuration_page import KINDS, with_tables
from tests.docs.pages import blocks, page, tables
from tieredstore.local.config import LocalConfig
from tieredstore.model.config import StoreConfig
from tieredstore.model.settings import Settings, facts_of, settings_of
from tieredstore.spark.options import store_config

TEXT = page("configuration.md")
FILES = {
    each.words[0]: each.text for each in blocks(TEXT) if each.language in {"toml", "properties"}
}


def test_the_tables_are_made_from_the_settings() -> None:
    assert with_tables(TEXT) == TEXT, "make them anew: python -m tests.docs.configuration_page"


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_setting_has_its_row(kind: type[Settings]) -> None:
    told = {(row[0], row[1]) for rows in tables(TEXT) for row in rows if len(row) == 5}
    for name, spec in settings_of(kind).items():
        assert (name, facts_of(spec).java) in told


def test_a_changed_default_is_seen() -> None:
    assert "`reserve_hours`" in TEXT
    assert with_tables(TEXT.replace("| `72` |", "| `73` |")) == TEXT


def test_one_toml_file_holds_both(tmp_path: Path) -> None:
    file = tmp_path / "tier.toml"
    file.write_text(FILES["tier.toml"], encoding="utf-8")
    config, local = StoreConfig.from_file(file), LocalConfig.from_file(file)
    assert (config.provider, config.bucket, config.reserve_hours) == ("s3", "tiers", 168)
    assert local.sync_flush
    assert local.store_path == config.store_path


def test_the_broker_conf_is_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(FILES["broker.conf"], encoding="utf-8")
    config, local = StoreConfig.from_file(file), LocalConfig.from_file(file)
    assert (config.provider, config.path, config.plugins) == ("posix", "/data/tier", ("tiered",))
    assert (config.reserve_hours, local.reserve_hours) == (168, 48)


def test_keys_of_a_bucket_may_come_from_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a pair of keys is an error, which shows that the command has read it. Keys in a file
    take precedence.
    """
    file = tmp_path / "tier.toml"
    plain = '[tieredstore]\nprovider = "s3"\nbucket = "b"\nendpoint = "http://127.0.0.1:1"\n'
    file.write_text(plain, encoding="utf-8")
    monkeypatch.setenv("TIEREDSTORE_ACCESS_KEY", "known")
    monkeypatch.setenv("TIEREDSTORE_RESERVE_HOURS", "no number")  # must not be read here
    command = Command(capsys)
    ran = command.run("topics", "--config", file)
    assert (ran.code, "go together" in ran.err) == (2, True)
    file.write_text(plain + 'access_key = "a"\nsecret_key = "s"\ncatalogue = "file"\n')
    assert "go together" not in command.run("topics", "--config", file).err


def test_they_do_so_for_spark_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tier.toml"
    file.write_text('[tieredstore]\nprovider = "s3"\nbucket = "b"\n', encoding="utf-8")
    for name in ("ACCESS_KEY", "SECRET_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"TIEREDSTORE_{name}", f"known-{name}")
    monkeypatch.setenv("TIEREDSTORE_BUCKET", "other")
    config = store_config({"config": str(file)})
    assert (config.access_key, config.secret_key) == ("known-ACCESS_KEY", "known-SECRET_KEY")
    assert (config.session_token, config.bucket) == ("known-SESSION_TOKEN", "b")
    said = store_config({"config": str(file), "access_key": "a", "secret_key": "s"})
    assert (said.access_key, said.secret_key, said.session_token) == ("a", "s", "")
