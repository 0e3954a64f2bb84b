"""An object store's keys, given in any way, do not show in anything that a verb leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from werkzeug.wrappers import Response

from tests.cli.cli_kit import Command, Ran
from tests.cli.tier_kit import TIER, named
from tests.cli.verb_kit import EVERY, ON_A_TIER, Bench, golden_copy, on_posix
from tests.s3.moto_server import Door
from tests.s3.s3_clients import new_settings
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings, keep_clients_quiet

ACCESS = "AKIAHUSHEDHUSHEDHUSH"
SECRET = "hushedSecretThatNobodySees0123456789"
TOKEN = "hushedTokenThatNobodySees0123456789"
KINDS = ("GET", "HEAD", "LIST", "PUT", "POST", "POST uploads", "DELETE", "DELETE-MANY")
# Like S3, it quotes the key's id and the string to sign.
REFUSAL = f"""<Error><Code>SignatureDoesNotMatch</Code><Message>The signature does not match
</Message><AWSAccessKeyId>{ACCESS}</AWSAccessKeyId><StringToSign>{ACCESS}</StringToSign></Error>"""

# One verb of each way to a bucket: a reader, a list, a writer, a job, a check of the store.
SOME = ("cat", "ls", "rebuild", "migrate", "verify", "certify", "catalogue snapshot", "offload")

Way = Callable[[pytest.MonkeyPatch, Path], list[str]]


def by_aws_variables(patch: pytest.MonkeyPatch, place: Path) -> list[str]:
    patch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_SESSION_TOKEN", TOKEN)
    return []


def by_own_variables(patch: pytest.MonkeyPatch, place: Path) -> list[str]:
    patch.setenv("TIEREDSTORE_ACCESS_KEY", ACCESS)
    patch.setenv("TIEREDSTORE_SECRET_KEY", SECRET)
    patch.setenv("TIEREDSTORE_SESSION_TOKEN", TOKEN)
    return []


def by_credentials_file(patch: pytest.MonkeyPatch, place: Path) -> list[str]:
    file = place / "credentials"
    file.write_text(
        f"[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
        f"aws_session_token = {TOKEN}\n"
    )
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    patch.delenv("AWS_ACCESS_KEY_ID")
    patch.delenv("AWS_SECRET_ACCESS_KEY")
    return []


def by_broker_conf(patch: pytest.MonkeyPatch, place: Path) -> list[str]:
    file = place / "broker.conf"
    file.write_text(f"objectStoreAccessKey={ACCESS}\nobjectStoreSecretKey={SECRET}\n")
    return ["--config", str(file)]


def by_toml(patch: pytest.MonkeyPatch, place: Path) -> list[str]:
    file = place / "keys.toml"
    file.write_text(
        f'access_key = "{ACCESS}"\nsecret_key = "{SECRET}"\nsession_token = "{TOKEN}"\n'
    )
    return ["--config", str(file)]


WAYS: list[Way] = [by_aws_variables, by_own_variables, by_credentials_file, by_broker_conf, by_toml]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that may hold the keys."""
    return tmp_path_factory.mktemp("keys")


@pytest.fixture
def settings(moto: tuple[str, Door]) -> ObjectStoreSettings:
    settings = new_settings(moto[0], "auto")
    folder = TIER / "tiered"
    with open_client(settings) as client:
        for file in folder.rglob("*"):
            if file.is_file():
                client.put(file.relative_to(folder).as_posix(), file.read_bytes())
    return settings


@pytest.fixture
def refusing(settings: ObjectStoreSettings, moto: tuple[str, Door]) -> Iterator[None]:
    for kind in KINDS:
        moto[1].answers[kind] = Response(REFUSAL, 403, content_type="application/xml")
    yield
    moto[1].answers.clear()


def options(bench: Bench, settings: ObjectStoreSettings, given: list[str]) -> list[str]:
    return [
        *given,
        *named(
            TIER,
            provider="s3",
            path=None,
            catalogue_file=bench.catalogue,
            bucket=settings.bucket,
            prefix=settings.prefix,
            endpoint=settings.endpoint,
            region=settings.region,
        ),
    ]


HUSHED = (SECRET, TOKEN, ACCESS)


def shown(text: str, hushed: tuple[str, ...] = HUSHED) -> list[str]:
    return [secret for secret in hushed if secret in text]


def check(ran: Ran, name: str, hushed: tuple[str, ...] = HUSHED) -> None:
    assert shown(ran.out, hushed) == [], name
    assert shown(ran.err, hushed) == [], (name, ran.err)


def check_files(place: Path) -> None:
    for path in place.rglob("*"):
        if path.is_file():
            assert shown(path.read_bytes().decode("latin-1")) == [], path


def check_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Check the records of every level and logger."""
    for record in caplog.records:
        text = f"{record.getMessage()} {record.exc_text}"
        assert shown(text) == [], record.name


def ready(command: Command, place: Path, name: str) -> Bench:
    place.mkdir()
    bench = Bench(command, place)
    bench.prepare(name)
    return bench


@pytest.fixture
def loud(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Turn DEBUG on for the process, as `logging.basicConfig(level=logging.DEBUG)` does."""
    loggers = [logging.getLogger(name) for name in ("botocore", "aiobotocore")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize("way", [by_aws_variables, None])
@pytest.mark.parametrize("client", ["s3fs", "obstore"])
@pytest.mark.usefixtures("loud")
def test_no_logger_shows_a_key_where_debug_is_on(
    moto: tuple[str, Door],
    client: str,
    way: Way | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = {"access_key": ACCESS, "secret_key": SECRET, "session_token": TOKEN}
    if way is not None:
        way(monkeypatch, tmp_path)
        keys = dict.fromkeys(keys, "")
    settings = new_settings(moto[0], client, **keys)  # botocore makes the bucket
    with open_client(settings) as opened:
        opened.put("a/b", b"body")
        assert opened.get_range("a/b", 0, 4) == b"body"
        assert [found.key for found in opened.list()] == ["a/b"]
        assert opened.delete_many(["a/b"]) == {}
    check_logs(caplog)


def test_a_logger_that_was_given_a_level_by_name_keeps_it() -> None:
    logger = logging.getLogger("botocore")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        keep_clients_quiet()
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


@pytest.mark.slow
@pytest.mark.usefixtures("loud")
def test_a_verb_that_does_its_work_shows_no_key(
    command: Command,
    settings: ObjectStoreSettings,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = by_toml(monkeypatch, keys)
    caplog.set_level(logging.DEBUG)
    for number, name in enumerate(ON_A_TIER):
        bench = ready(command, tmp_path / str(number), name)
        # The row of `expire` names its own file.
        tier = [] if "--config" in bench.words(name) else given
        for words in ((), ("--json",)):
            if not words or name in ("topics", "report", "catalogue show", "cost"):
                check(bench.run(name, *options(bench, settings, tier), "--debug", *words), name)
    check_files(tmp_path)
    check_logs(caplog)
    with open_client(settings) as client:
        for found in client.list():
            data = client.get_range(found.key, 0, found.size) if found.size else b""
            assert shown(data.decode("latin-1")) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.usefixtures("refusing")
def test_a_verb_that_is_refused_shows_no_key(
    command: Command,
    settings: ObjectStoreSettings,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    way: Way,
) -> None:
    given = way(monkeypatch, keys)
    caplog.set_level(logging.DEBUG, "tieredstore")
    refused = 0
    for number, name in enumerate(ON_A_TIER if way is by_toml else SOME):
        bench = ready(command, tmp_path / str(number), name)
        if "--config" in bench.words(name):
            continue  # it has its own file
        words = [*options(bench, settings, given), *(["--json"] if number % 2 else [])]
        ran = bench.run(name, *words)
        check(ran, name)
        refused += ran.code == 5
        # We do not know what AWS's chain found: a traceback may show the id that S3 quotes.
        known = (SECRET, TOKEN) if way in (by_aws_variables, by_credentials_file) else HUSHED
        check(bench.run(name, *words, "--debug"), name, known)
    assert refused > len(SOME) - 2
    check_files(tmp_path)
    check_logs(caplog)


@pytest.mark.parametrize("name", EVERY)
def test_an_address_that_holds_a_password_is_refused_and_not_quoted(
    command: Command, tmp_path: Path, name: str
) -> None:
    """This holds even if the address is not an option of the verb."""
    bench = Bench(command, tmp_path)
    address = f"http://{ACCESS}:{SECRET}@127.0.0.1:9"
    words = bench.words(name)
    for debug in ([], ["--debug"]):
        ran = bench.run(
            name, *named(TIER, provider="s3", path=None, bucket="b", endpoint=address), *debug
        )
        assert ran.code == 2, ran
        check(ran, name)
    assert words == bench.words(name)
    check_files(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["export", "--to", f"s3://{ACCESS}:{SECRET}@bucket/folder"],
        ["export", "--to", f"gs://{ACCESS}:{SECRET}@bucket/folder"],
        ["export", "--to", "s3://bucket/a", "--to-endpoint", f"http://{ACCESS}:{SECRET}@host"],
        [
            *(
                "migrate",
                "--to-provider",
                "s3",
                "--to-bucket",
                "b",
                "--to-catalogue-file",
                "m.json",
            ),
            *("--to-endpoint", f"http://{ACCESS}:{SECRET}@host"),
        ],
    ],
    ids=["a bucket", "another store", "its address", "a target"],
)
def test_a_target_that_holds_a_password_is_refused_and_not_quoted(
    command: Command, tmp_path: Path, words: list[str]
) -> None:
    bench = Bench(command, tmp_path)
    for others in ([], ["--debug"], ["--json"], ["--dry-run"]):
        ran = command.run(*words, *on_posix(bench, TIER / "tiered"), *others)
        assert ran.code == 2, ran
        check(ran, words[0])
        assert "credentials" in ran.err
    check_files(tmp_path)


def test_the_root_of_another_store_that_holds_a_password_is_refused_and_not_quoted(
    command: Command, tmp_path: Path
) -> None:
    conf = tmp_path / "tier.toml"
    conf.write_text(f'provider = "fsspec"\nurl = "ftp://{ACCESS}:{SECRET}@host/tier"\n')
    ran = command.run("topics", "--config", conf, "--debug")
    assert ran.code == 2
    check(ran, "topics")


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_migration_into_a_bucket_writes_no_key(
    command: Command,
    settings: ObjectStoreSettings,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moto: tuple[str, Door],
    request: pytest.FixtureRequest,
    is_refused: bool,
) -> None:
    """Neither its journal, its report nor the settings that it prints show one."""
    by_toml(monkeypatch, keys)
    target = keys / "keys.toml"
    target.write_text(
        f"{target.read_text()}provider = 's3'\nbucket = '{settings.bucket}'\nprefix = 'new'\n"
        f"endpoint = '{settings.endpoint}'\nregion = 'us-east-1'\ncertify = 'off'\n"
        f"metadata_path = '{tmp_path / 'new.json'}'\nindex_slot_count = 64\n"
        "index_item_count = 300\nbroker_name = 'broker-gold-a'\ncluster_name = 'GoldenCluster'\n"
    )
    if is_refused:
        request.addfinalizer(moto[1].answers.clear)
        moto[1].answers["PUT"] = Response(REFUSAL, 403, content_type="application/xml")
    bench = Bench(command, tmp_path)
    words = ["migrate", *on_posix(bench, golden_copy(tmp_path)), "--to-config", target]
    report = ("--report", tmp_path / "report.json")
    ran = command.run(*words, *report, "--debug")
    assert ran.code == (5 if is_refused else 0), ran.err
    check(ran, "migrate")
    check_files(tmp_path)
    ran = command.run(*words, "--cut-over", "--json")
    assert ran.code == (5 if is_refused else 0), ran.err
    check(ran, "migrate")
    check_files(tmp_path)
