"""Settings of object stores: where they come from, what is refused, and what is never shown."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_settings import ObjectStoreSettings

SECRET = "AKIA-secret-0123456789"


def test_everything_comes_from_the_store_s_settings(tmp_path: Any) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "objectStoreEndpoint=s3.example.org:9000\nobjectStoreBucket=tier\n"
        f"objectStoreAccessKey={SECRET}\nobjectStoreSecretKey={SECRET}\n"
    )
    settings = ObjectStoreSettings.from_config(StoreConfig.from_file(conf))
    assert settings.endpoint == "https://s3.example.org:9000"
    assert (settings.bucket, settings.access_key, settings.secret_key) == ("tier", SECRET, SECRET)
    config = StoreConfig(
        bucket="b",
        prefix="/p/q/",
        region="eu-north-1",
        session_token="t",
        access_key="a",
        secret_key="s",
        addressing="virtual",
        storage_class="STANDARD_IA",
        encryption="aws:kms",
        encryption_key="k",
        conditional_put=False,
        checksum="crc32c",
        connect_timeout_ms=1,
        request_timeout_ms=2,
        connections_max=3,
        object_client="s3fs",
        request_prices=("put=1",),
    )
    settings = ObjectStoreSettings.from_config(config)
    assert (settings.prefix, settings.client, settings.prices.put) == ("p/q/", "s3fs", 1)
    for name in ("region", "session_token", "addressing", "storage_class", "encryption"):
        assert getattr(settings, name) == getattr(config, name)
    assert not settings.conditional_put


def test_an_old_setting_for_etags_changes_nothing_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = ObjectStoreSettings.from_config(StoreConfig(bucket="b"))
    assert caplog.text == ""
    config = StoreConfig(bucket="b").with_env({"TIEREDSTORE_ETAG_QUOTING": "false"})
    assert ObjectStoreSettings.from_config(config) == plain
    assert "etag_quoting" in caplog.text


def test_a_scheme_in_capitals_is_the_same_address() -> None:
    settings = ObjectStoreSettings(bucket="b", endpoint="HTTP://Host:9000/s3")
    assert settings.endpoint == "http://Host:9000/s3"  # obstore compares the scheme


@pytest.mark.parametrize(
    "options",
    [
        {"bucket": ""},
        {"bucket": "a/b"},
        {"bucket": "a?b"},
        {"bucket": ".."},
        {"bucket": "größe"},
        {"addressing": "none"},
        {"checksum": "md5"},
        {"encryption": "rot13"},
        {"client": "boto3"},
        {"access_key": SECRET},
        {"secret_key": SECRET},
        {"access_key": f"{SECRET}\n", "secret_key": SECRET},
        {"access_key": SECRET, "secret_key": SECRET, "session_token": f"{SECRET}\r"},
        {"endpoint": f"https://{SECRET}:x@host"},
        {"endpoint": "http://"},
        {"endpoint": "http://[::1"},
        {"endpoint": "ftp://host"},
        {"endpoint": "http://my host"},
        {"endpoint": "http://host:99999"},
        {"endpoint": "http://host:port"},
        {"endpoint": "http://host?x=1"},
        {"prefix": "a//b"},
        {"prefix": "a/../b"},
    ],
)
def test_what_cannot_be_is_refused_without_quoting_secrets(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ObjectStoreSettings(**{"bucket": "b", **options})
    assert SECRET not in str(caught.value)


def test_secrets_show_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    settings = ObjectStoreSettings(
        bucket="b",
        access_key=SECRET,
        secret_key=SECRET,
        session_token=SECRET,
        conditional_put=False,
    )
    with caplog.at_level(logging.DEBUG):
        client = open_client(settings)
    for text in (repr(settings), str(settings), settings.place(), repr(client), caplog.text):
        assert SECRET not in text
    assert SECRET not in client.describe()
    assert "conditional_put is off" in caplog.text
    assert client.describe() in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "addressing", "path"),
    [
        ("", "auto", False),
        ("https://s3.eu-north-1.amazonaws.com", "auto", False),
        ("http://127.0.0.1:9000", "auto", True),
        ("http://127.0.0.1:9000", "virtual", False),
        ("", "path", True),
    ],
)
def test_the_bucket_goes_into_the_path_where_names_of_hosts_cannot_hold_it(
    endpoint: str, addressing: str, path: bool
) -> None:
    settings = ObjectStoreSettings(bucket="b", endpoint=endpoint, addressing=addressing)
    assert settings.path_addressing is path


def test_the_fast_client_is_taken_where_it_can_do_what_is_asked() -> None:
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "obstore"),
        ({"client": "s3fs"}, "s3fs"),
        ({"checksum": "crc32c"}, "s3fs"),
        ({"checksum": "sha256"}, "obstore"),
    ]
    for options, name in asked:
        client = open_client(ObjectStoreSettings(bucket="b", **options))
        assert client.describe().partition(",")[0] == name
    with pytest.raises(InvalidConfigError, match="crc32c"):
        open_client(ObjectStoreSettings(bucket="b", client="obstore", checksum="crc32c"))
