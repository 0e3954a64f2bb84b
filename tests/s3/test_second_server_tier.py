"""A whole tier on a third party's server, operated by the commands, with each client.

TIEREDSTORE_S3_ENDPOINT is its address, as for `test_second_server.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command
from tests.s3.s3_clients import CLIENTS, THIRD_PARTY, new_settings, throw_away
from tieredstore.cli.output import ExitCode
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import FencedError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

ENDPOINT = THIRD_PARTY.get("endpoint", "")
TOPICS = ("Orders", "%RETRY%a|b")
COUNT = 200
# Fields of `ObjectStoreSettings` with another name in a config file, or with none.
_OTHER_NAMES = {"client": "object_client", "prices": ""}

if not ENDPOINT:
    pytest.skip("TIEREDSTORE_S3_ENDPOINT names no second S3 server", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("s3_environment")


@pytest.fixture(params=CLIENTS)
def settings(request: pytest.FixtureRequest) -> Iterator[ObjectStoreSettings]:
    yield new_settings(ENDPOINT, request.param)
    throw_away()


def config_file(folder: Path, settings: ObjectStoreSettings, store: Path) -> Path:
    """Write the settings file as an operator would."""
    lines = ["[tieredstore]", 'broker_name = "broker-a"', 'provider = "s3"']
    lines += [f"store_path = {json.dumps(str(store))}", 'cluster_name = "c"', "reserve_hours = 1"]
    for each in dataclasses.fields(settings):
        name, value = _OTHER_NAMES.get(each.name, each.name), getattr(settings, each.name)
        if name and value != "":
            value = value if isinstance(value, bool | int) else str(value)
            lines.append(f"{name} = {json.dumps(value)}")
    file = folder / f"{store.name}.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_commands_of_an_operator_work(
    settings: ObjectStoreSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, store = Command(capsys), tmp_path / "store"
    config = config_file(tmp_path, settings, store)
    elsewhere = config_file(tmp_path, settings, tmp_path / "elsewhere")

    def said(verb: str, *words: object, at: Path = config) -> str:
        ran = command.run(verb, *words, "--config", at)
        assert ran.code == 0, (verb, *words, ran)
        return ran.out

    if settings.conditional_put:  # else `certify` fails, as two writers may both win
        said("certify")
    for sealed in ([], ["--seal"]):
        for topic in TOPICS:
            words = ["--body", "hello", "--key", "k", "--repeat", COUNT, "--store-path", store]
            assert command.run("put", topic, *words).code == 0
        said("offload", *sealed)
    for at in (config, elsewhere):
        for topic in TOPICS:
            assert said("cat", topic, "--max", 1000, "--json", at=at).count("\n") == 2 * COUNT
            assert said("query", topic, "k", "--json", at=at).count("\n")
        assert said("audit", "--json", at=at) == ""
    said("verify", "--report", tmp_path / "verified.json")
    said("why", "Orders", 0, 17)
    for lost in (store / "config").glob("tieredStoreMetadata*"):
        lost.rename(tmp_path / lost.name)
    refused = command.run("rebuild", "--config", config)  # the log has everything
    assert refused.code == ExitCode.REFUSED, refused
    assert said("cat", TOPICS[1], "--max", 1000, "--json").count("\n") == 2 * COUNT
    assert said("audit", "--json") == ""
    said("expire", "--dry-run", at=elsewhere)


def test_a_writer_that_was_stalled_learns_of_it(settings: ObjectStoreSettings) -> None:
    path, log = "broker-a/%RETRY%a|b/0", SegmentType.COMMIT_LOG

    def process() -> ObjectProvider:
        return ObjectProvider(open_client(settings), "c", Runtime.inline())

    stalled = process().open(path, log, 0)
    stalled.write(0, b"first")
    second = process().open(path, log, 0)
    second.write(5, b"second")
    with pytest.raises(FencedError):
        stalled.write(5, b"late")
    assert process().open(path, log, 0).read(0, 11) == b"firstsecond"
    second.seal()
    with pytest.raises(FencedError):
        stalled.write(11, b"later")
    reader = process()
    assert [(each.path, each.size) for each in reader.list()] == [(path, 11)]
    assert reader.open(path, log, 0).read(0, 11) == b"firstsecond"
