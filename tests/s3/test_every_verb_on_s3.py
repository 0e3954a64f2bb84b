"""Every verb, on a tier that Java wrote and that was moved into a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from werkzeug.wrappers import Response

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, named
from tests.cli.verb_kit import (
    ON_A_TIER,
    Bench,
    golden_copy,
    on_posix,
    same_rows,
)
from tests.s3.moto_server import Door
from tests.s3.s3_clients import new_settings
from tieredstore.driver.retry import RetryPolicy
from tieredstore.providers import object_provider
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

# A bucket has no catalogue to publish or recover, and its log holds the notes of its queues.
NOT_IN_A_BUCKET = ("catalogue snapshot", "resume", "recover")
IN_A_BUCKET = [name for name in ON_A_TIER if name not in NOT_IN_A_BUCKET]
WITH_A_LOG = (
    "expire",
    "offload",
    "cost",
    "report",
    "migrate",
    "export",
    "reindex",
    "catalogue reserve",
)
KINDS = ("GET", "HEAD", "LIST", "PUT", "POST", "POST uploads", "DELETE", "DELETE-MANY")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def bench(command: Command, tmp_path: Path) -> Bench:
    return Bench(command, tmp_path)


@pytest.fixture
def settings(moto: tuple[str, Door]) -> ObjectStoreSettings:
    """A bucket with the golden tier."""
    settings = new_settings(moto[0], "auto")
    folder = TIER / "tiered"
    with open_client(settings) as client:
        for file in folder.rglob("*"):
            if file.is_file():
                client.put(file.relative_to(folder).as_posix(), file.read_bytes())
    return settings


@pytest.fixture
def refusing(settings: ObjectStoreSettings, moto: tuple[str, Door]) -> Iterator[None]:
    """Once the bucket is filled, every request is refused for a wrong key."""
    text = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
    for kind in KINDS:
        moto[1].answers[kind] = Response(text, 403, content_type="application/xml")
    yield
    moto[1].answers.clear()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry a failed request as often as usual, but without the wait."""
    at_once = partial(RetryPolicy, first_wait_ms=0)
    monkeypatch.setattr(object_provider, "RetryPolicy", at_once)


def in_bucket(bench: Bench, settings: ObjectStoreSettings, **others: object) -> list[str]:
    return named(
        TIER,
        **{
            "provider": "s3",
            "path": None,
            "catalogue_file": bench.catalogue,
            "bucket": settings.bucket,
            "prefix": settings.prefix,
            "endpoint": settings.endpoint,
            "region": settings.region,
            **others,
        },
    )


@pytest.mark.parametrize("name", IN_A_BUCKET)
def test_a_bucket_answers_as_a_folder_does(
    command: Command, bench: Bench, settings: ObjectStoreSettings, tmp_path: Path, name: str
) -> None:
    verb = ON_A_TIER[name]
    bench.prepare(name)
    if name in WITH_A_LOG:  # Java's sealed segments are there and must be adopted first
        assert bench.run("rebuild", *in_bucket(bench, settings)).code == 0
    ran = bench.run(name, *in_bucket(bench, settings), "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    assert verb.holds(ran.rows), ran.out[:1000]
    beside = tmp_path / "beside"
    beside.mkdir()
    other = Bench(command, beside)
    other.prepare(name)
    folder = other.run(name, *on_posix(other, golden_copy(beside)), "--json")
    assert same_rows(ran.rows, verb.same) == same_rows(folder.rows, verb.same)


def test_a_machine_lacks_nothing_to_go_on_with_a_bucket(
    bench: Bench, settings: ObjectStoreSettings
) -> None:
    assert bench.run("rebuild", *in_bucket(bench, settings)).code == 0
    bench.catalogue.unlink(missing_ok=True)
    rows = (
        bench.run("recover", *in_bucket(bench, settings, catalogue_file=None), "--json").done().rows
    )
    assert (rows[0]["catalogue"], rows[0]["has_local_store"]) == ("in the bucket", False)
    assert rows[-1]["queue_count"] == len(rows) - 2 == 9


def test_a_log_that_is_lost_is_not_taken_for_one_that_never_was(
    bench: Bench, settings: ObjectStoreSettings
) -> None:
    """The advice used to be to name another broker, as for a name that nobody has written under."""
    there = in_bucket(bench, settings, catalogue_file=None)
    assert bench.run("rebuild", *in_bucket(bench, settings)).code == 0
    with open_client(settings) as client:
        gone = [each.key for each in client.list(".rounds/") if "/epoch/" not in each.key]
        client.delete_many(gone)
    for name in ("audit", "verify", "queues"):
        ran = bench.run(name, *there)
        assert (ran.code, ran.err.count("\n")) == (3, 1), ran
        assert "the log is lost" in ran.err
        assert "`rebuild`" in ran.err
        assert "--broker" not in ran.err
    assert bench.run("rebuild", *in_bucket(bench, settings)).code == 0
    assert bench.run("audit", *there).code == 0


@pytest.mark.parametrize("name", IN_A_BUCKET)
def test_a_missing_bucket_is_one_line_that_says_what_to_do(
    bench: Bench, settings: ObjectStoreSettings, name: str
) -> None:
    bench.prepare(name)
    ran = bench.run(name, *in_bucket(bench, settings, bucket="no-such-bucket"))
    check_refusal(name, ran.code, ran.err)
    assert "see its name (--bucket)" in ran.err or not ran.code


@pytest.mark.parametrize("name", IN_A_BUCKET)
@pytest.mark.usefixtures("refusing")
def test_wrong_keys_are_one_line_that_says_where_they_come_from(
    bench: Bench, settings: ObjectStoreSettings, name: str
) -> None:
    bench.prepare(name)
    ran = bench.run(name, *in_bucket(bench, settings))
    check_refusal(name, ran.code, ran.err)
    assert "TIEREDSTORE_SECRET_KEY" in ran.err or not ran.code


def check_refusal(name: str, code: int, told: str) -> None:
    """Check the refusal; verbs that only look at the catalogue succeed."""
    wanted = 5 if name in WITH_A_LOG else ON_A_TIER[name].refused
    assert code == wanted, told
    assert told == "" if code == 0 else told.count("\n") == 1, told
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_A_BUCKET)
@pytest.mark.usefixtures("impatient")
def test_an_address_where_nobody_answers_is_one_line(
    bench: Bench, settings: ObjectStoreSettings, name: str
) -> None:
    """The verb ends: a refused connection is retried only a few times."""
    bench.prepare(name)
    ran = bench.run(name, *in_bucket(bench, settings, endpoint="http://127.0.0.1:9"))
    # the catalogue's file is enough to show it
    assert ran.code == (0 if name == "catalogue show" else 5), ran.err
    assert ran.code == 0 or ran.err.count("\n") == 1, ran.err
    assert ran.code == 0 or "127.0.0.1:9" in ran.err
    assert ran.code == 0 or "refuses the connection; see that the store runs" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topics", "cat", "audit", "verify"])
@pytest.mark.usefixtures("impatient")
def test_a_server_that_never_replies_is_given_up(
    bench: Bench, settings: ObjectStoreSettings, moto: tuple[str, Door], tmp_path: Path, name: str
) -> None:
    conf = tmp_path / "hasty.toml"
    conf.write_text("request_timeout_ms = 20\n")
    with moto[1].breaking("stalled", rate=1.0):
        ran = bench.run(name, "--config", conf, *in_bucket(bench, settings))
    assert ran.code == 5, ran.err
    assert ran.err.count("\n") == 1, ran.err


def test_a_bucket_has_no_catalogue_to_publish(bench: Bench, settings: ObjectStoreSettings) -> None:
    ran = bench.run("catalogue snapshot", *in_bucket(bench, settings))
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran
    assert "lies with its bytes" in ran.err
