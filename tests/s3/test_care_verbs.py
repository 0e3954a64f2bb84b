"""Audit, rebuild and certify of a tier in a bucket: that of Java, copied there file by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from werkzeug.wrappers import Response

from tests.cli.cli_kit import Command, Ran
from tests.cli.tier_kit import CATALOGUE, TIER, named
from tests.s3.moto_server import Door
from tests.s3.s3_clients import new_settings
from tieredstore.driver.object_client import ObjectClient
from tieredstore.providers.object_clients import open_client
from tieredstore.providers.object_settings import ObjectStoreSettings


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def settings(moto: tuple[str, Door]) -> ObjectStoreSettings:
    return new_settings(moto[0], "auto")


def asked(command: Command, settings: ObjectStoreSettings, catalogue: Path, *words: str) -> Ran:
    tier = named(
        TIER,
        provider="s3",
        path=None,
        metadata=catalogue,
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=settings.endpoint,
        region=settings.region,
    )
    return command.run(*words, *tier)


def filled(settings: ObjectStoreSettings) -> ObjectClient:
    client = open_client(settings)
    folder = TIER / "tiered"
    for file in folder.rglob("*"):
        if file.is_file():
            client.put(file.relative_to(folder).as_posix(), file.read_bytes())
    return client


def test_a_tier_in_a_bucket_is_looked_after(
    command: Command, settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    catalogue = tmp_path / "tieredStoreMetadata.json"
    catalogue.write_bytes((TIER / CATALOGUE).read_bytes())
    with filled(settings) as client:
        ran = asked(command, settings, catalogue, "audit", "--json")
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        ran = asked(command, settings, tmp_path / "new.json", "rebuild", "--json")
        assert (ran.code, ran.err) == (0, "")
        assert (ran.rows[0]["segment_count"], ran.rows[0]["size"]) == (57, 346_788)
        assert asked(command, settings, tmp_path / "new.json", "audit", "--json").code == 0
        lost = next(found.key for found in client.list() if "COMMIT_LOG" in found.key)
        client.delete_many([lost])
        ran = asked(command, settings, catalogue, "audit", "--json")
        assert (ran.code, [row["kind"] for row in ran.rows]) == (4, ["missing"])


@pytest.mark.parametrize(
    "words",
    [
        ["topics"],
        ["queues"],
        ["query", "GoldAa", "x"],
        ["cat", "GoldAa"],
        ["why", "GoldAa", "0", "0"],
    ],
    ids=" ".join,
)
def test_a_bucket_that_refuses_is_no_damage(
    command: Command,
    settings: ObjectStoreSettings,
    tmp_path: Path,
    moto: tuple[str, Door],
    request: pytest.FixtureRequest,
    words: list[str],
) -> None:
    catalogue = tmp_path / "tieredStoreMetadata.json"
    catalogue.write_bytes((TIER / CATALOGUE).read_bytes())
    with filled(settings):
        pass
    request.addfinalizer(moto[1].answers.clear)
    for kind in ("GET", "HEAD", "LIST"):
        moto[1].answers[kind] = Response(b"", 403)
    ran = asked(command, settings, catalogue, *words)
    assert (ran.code, ran.err.count("\n")) == (5, 1), ran
    assert "403 keys are missing or wrong" in ran.err


def test_a_bucket_is_certified(command: Command, settings: ObjectStoreSettings) -> None:
    ran = asked(command, settings, Path("none.json"), "certify", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert {"create-only-race", "listing", "delete"} <= {row["check"] for row in ran.rows}
    assert all(row["passed"] for row in ran.rows)
    with open_client(settings) as client:
        assert list(client.list()) == []
