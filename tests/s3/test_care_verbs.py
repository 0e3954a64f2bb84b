"""Audit, rebuild and certify on a tier that Java wrote, copied to a bucket file by file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from werkzeug.wrappers import Response

from tests.cli.cli_kit import Command, Ran
from tests.cli.tier_kit import CATALOGUE, TIER, named
from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_settings
from tieredstore.driver.certify import Certificate
from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.findings import Finding
from tieredstore.providers.certified import keep, kept_verdict
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings


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
        catalogue_file=catalogue,
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
        out = tmp_path / "tier.html"
        assert (
            asked(command, settings, tmp_path / "new.json", "report", "--out", str(out)).code == 0
        )
        assert "Rounds and other entries of the log: " in out.read_text("utf-8")
        lost = next(found.key for found in client.list() if "COMMIT_LOG" in found.key)
        client.delete_many([lost])
        ran = asked(command, settings, catalogue, "audit", "--json")
        assert (ran.code, [row["kind"] for row in ran.rows]) == (4, ["missing", "no-message"])


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
    assert "403: the keys are missing or wrong" in ran.err


def test_a_bucket_is_made_and_said_again_when_it_is_there(
    command: Command, settings: ObjectStoreSettings
) -> None:
    where = ("--provider", "s3", "--endpoint", settings.endpoint, "--region", settings.region)
    words = ("create-bucket", *where, "--bucket", f"{settings.bucket}-new")
    row = {"bucket": f"{settings.bucket}-new", "abort_days": 2}
    assert command.run(*words, "--json").done().rows == [row]
    said = command.run(*words).done().out
    assert said == f"the bucket {row['bucket']} is there; abandoned uploads go after 2 days\n"
    ran = command.run("-v", "ls", *where, "--bucket", row["bucket"], "--catalogue", "rebuild")
    assert re.search(r"info: driver\.object_requests: requests: \d+ list; .* dollars\n", ran.err)


def test_a_folder_has_no_bucket_to_make(command: Command) -> None:
    command.run("create-bucket", *named(TIER)).refused(2, "name one of s3")


def test_a_bucket_is_certified(command: Command, settings: ObjectStoreSettings) -> None:
    ran = asked(command, settings, Path("none.json"), "certify", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert {"create-only-race", "listing", "delete"} <= {row["check"] for row in ran.rows}
    assert all(row["passed"] for row in ran.rows)
    with open_client(settings) as client:
        assert list(client.list()) == []


def test_a_bucket_that_failed_is_not_asked_again_unless_it_is_said(
    command: Command, settings: ObjectStoreSettings
) -> None:
    none = Path("none.json")
    with open_client(settings) as client:
        lost = Finding.of_check("create-only-race", False, "2 of 16 racing writers won")
        keep(client, Certificate(client=client.describe(), findings=(lost,), elapsed_ms=1))
        ran = asked(command, settings, none, "certify", "--json")
        assert (ran.code, ran.err.count("\n")) == (5, 1), ran
        assert ran.rows == [
            {"check": "create-only-race", "passed": False, "detail": "2 of 16 racing writers won"}
        ]
        assert "stays refused until `certify --again` passes" in ran.err
        assert asked(command, settings, none, "certify", "--again").code == 0
        kept = kept_verdict(client)
        assert kept is not None
        assert kept.passed
    assert asked(command, settings, none, "certify").code == 0


@pytest.mark.parametrize("name", CLIENTS)
def test_a_store_that_fails_at_a_listing_is_told_as_that(
    command: Command, moto: tuple[str, Door], name: str, request: pytest.FixtureRequest
) -> None:
    settings = new_settings(moto[0], name)
    request.addfinalizer(moto[1].answers.clear)
    moto[1].answers["LIST"] = Response(b"", 500)
    ran = asked(command, settings, Path("none.json"), "certify")
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1), ran
    assert re.search(r"list\S* \S+: 500.*\(at the check read-after-write\)", ran.err)
    assert "the store was reached" in ran.err
    assert "address" not in ran.err
    moto[1].answers.clear()
    with open_client(settings) as client:
        assert list(client.list()) == []  # no verdict, and nothing left of the check
