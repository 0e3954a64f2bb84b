"""Options of both S3 clients reach the wire and degrade as documented."""

from __future__ import annotations

import logging

import pytest
from werkzeug.wrappers import Response

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_client, new_settings
from tieredstore.access.wiring import provider_of
from tieredstore.driver.certify import certify
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.runtime import Runtime, SystemClock
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentNotFoundError
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_admin import admin_client, create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

MIB = 1024 * 1024


@pytest.mark.parametrize("name", CLIENTS)
def test_storage_class_and_encryption_go_with_every_object(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    options = {
        "storage_class": "STANDARD_IA",
        "encryption": "aws:kms",
        "encryption_key": "arn:aws:kms:us-east-1:123456789012:key/k",
    }
    with new_client(endpoint, name, **options) as client:
        client.put("k", b"x")
        assert door.headers["x-amz-storage-class"] == "STANDARD_IA"
        assert door.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert door.headers["x-amz-server-side-encryption-aws-kms-key-id"].endswith("key/k")
        assert "x-amz-trailer" not in door.headers


@pytest.mark.parametrize("name", CLIENTS)
def test_without_conditions_a_look_comes_first_and_the_capabilities_say_so(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    with new_client(endpoint, name, conditional_put=False) as client:
        assert not client.capabilities.create_only
        client.put("k", b"first")
        door.requests()
        with pytest.raises(ObjectExistsError):
            client.put("k", b"second")
        assert door.requests() == {"HEAD": 1}
        client.put("k", b"third", if_absent=False)
        assert door.requests() == {"PUT": 1}
        client.put("other", b"fourth")
        assert door.requests() == {"HEAD": 1, "PUT": 1}
        assert "if-none-match" not in door.headers
        with pytest.raises(ObjectExistsError):
            client.put_stream("k", [b"fifth"])


@pytest.mark.parametrize(
    ("name", "checksum"),
    [("s3fs", "crc32"), ("s3fs", "crc32c"), ("s3fs", "sha256"), ("obstore", "sha256")],
)
def test_a_checksum_goes_along_as_a_plain_header(
    moto: tuple[str, Door], name: str, checksum: str
) -> None:
    endpoint, door = moto
    with new_client(endpoint, name, checksum=checksum) as client:
        client.put("k", b"x" * 1000)
        assert door.headers[f"x-amz-checksum-{checksum}"]
        assert "x-amz-trailer" not in door.headers
        facts = client.put_stream("large", [bytes(MIB)] * 17)
        assert facts is not None
        assert client.head("large").size == 17 * MIB


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("addressing", ["virtual", "path"])
def test_the_bucket_is_in_the_host_s_name_or_in_the_path(
    moto: tuple[str, Door], name: str, addressing: str
) -> None:
    """This needs no name server: bucket `127` at the host `0.0.1` is this machine."""
    endpoint, door = moto
    virtual, port = addressing == "virtual", endpoint.rpartition(":")[2]
    settings = ObjectStoreSettings(
        bucket="127",
        prefix="some/tier",
        endpoint=f"http://0.0.1:{port}" if virtual else endpoint,
        region="us-east-1",
        access_key="testing",
        secret_key="testing-secret",
        addressing=addressing,
        client=name,
    )
    with open_client(settings) as client:
        door.answers["PUT"] = Response(headers={"ETag": '"e"'})
        try:
            assert client.put("k", b"x").etag == '"e"'
        finally:
            door.answers.clear()
    assert door.last == (f"127.0.0.1:{port}", "/some/tier/k" if virtual else "/127/some/tier/k")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_tier_is_written_to_once_the_store_has_proved_itself(
    moto: tuple[str, Door], name: str
) -> None:
    """The default `certify = require` checks the store once and keeps the verdict in the bucket."""
    endpoint, door = moto
    settings = new_settings(endpoint, name)
    config = StoreConfig(
        provider="s3",
        object_client=name,
        bucket=settings.bucket,
        prefix=settings.prefix,
        endpoint=settings.endpoint,
        region=settings.region,
        access_key=str(settings.access_key),
        secret_key=str(settings.secret_key),
    )
    assert config.certify == "require"
    clock = SystemClock()
    for position in (0, 4):
        door.requests()
        started = clock.monotonic()
        with Runtime.inline() as runtime:
            provider = provider_of(config, runtime, NoMetrics())
            segment = provider.open("broker-a/T/0", SegmentType.COMMIT_LOG, 0)
            segment.write(position, b"data")
            assert segment.read(0, position + 4) == b"datadata"[: position + 4]
            provider.close()
        assert clock.monotonic() - started < 600
        puts = door.requests()["PUT"]
        # The claim, the start of the epoch, and the entry with the bytes.
        assert (puts > 1_000) if position == 0 else (puts == 3), puts


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("encryption", ["AES256", "aws:kms"])
def test_uploads_in_parts_are_encrypted_too(
    moto: tuple[str, Door], name: str, encryption: str
) -> None:
    endpoint, door = moto
    options = {"encryption": encryption, "storage_class": "STANDARD_IA"}
    with new_client(endpoint, name, **options) as client:
        assert client.put_stream("large", [bytes(MIB)] * 17) is not None
        assert door.begun["x-amz-server-side-encryption"] == encryption
        assert door.begun["x-amz-storage-class"] == "STANDARD_IA"


@pytest.mark.parametrize("name", CLIENTS)
def test_no_secret_is_logged_by_anybody(
    moto: tuple[str, Door], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither we nor the libraries below log one, at the levels that we leave them."""
    secret = "a-very-secret-key-0123456789"
    settings = new_settings(moto[0], name, access_key="AKIDKNOWN", secret_key=secret)
    with caplog.at_level(logging.DEBUG, logger="tieredstore"), open_client(settings) as client:
        client.put("k", b"x")
        with pytest.raises(SegmentNotFoundError) as caught:
            client.head("absent")
        shown = (repr(client), repr(vars(client)), repr(caught.value), caplog.text)
        assert not [text for text in shown if secret in text]


@pytest.mark.parametrize("name", CLIENTS)
def test_it_is_certified(moto: tuple[str, Door], name: str) -> None:
    with new_client(moto[0], name) as client:
        certificate = certify(client)
        assert certificate.failures == ()
        assert certificate.elapsed_ms < 600_000
        assert list(client.list()) == []


def test_keys_that_one_client_puts_the_other_reads(moto: tuple[str, Door]) -> None:
    settings = new_settings(moto[0], "obstore")
    object.__setattr__(other := new_settings(moto[0], "s3fs"), "bucket", settings.bucket)
    with open_client(settings) as fast, open_client(other) as s3fs:
        for number, key in enumerate(("%RETRY%g/0", "主题/1", "a b+c~d", "a|b/#?*")):
            fast.put(f"f/{key}", b"x", metadata={"nonce": f"{number}"})
            s3fs.put(f"s/{key}", b"x", metadata={"nonce": f"{number}"})
            assert s3fs.head(f"f/{key}").metadata == {"nonce": f"{number}"}
            assert fast.head(f"s/{key}").metadata == {"nonce": f"{number}"}
        assert list(fast.list()) == list(s3fs.list())
        # Foreign keys that obstore does not parse are listed by the second client.
        admin_client(settings).put_object(Bucket=settings.bucket, Key="some/tier/g//odd", Body=b"x")
        assert list(fast.list()) == list(s3fs.list())
        assert list(fast.list("g/")) == list(s3fs.list("g/"))


def test_a_bucket_is_set_up_twice_with_one_rule(moto: tuple[str, Door]) -> None:
    settings = new_settings(moto[0], "s3fs")
    create_bucket(settings, abort_days=5)
    rules = admin_client(settings).get_bucket_lifecycle_configuration(Bucket=settings.bucket)
    (rule,) = rules["Rules"]
    assert rule["Filter"] == {"Prefix": "some/tier/"}
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 5}


def test_a_bucket_that_is_there_is_not_made_again(moto: tuple[str, Door]) -> None:
    """In us-east-1 AWS says yes to that, and takes back the rights that others had to it."""
    endpoint, door = moto
    settings = new_settings(endpoint, "s3fs")
    create_bucket(settings)
    door.requests()
    create_bucket(settings)
    assert door.requests() == {"HEAD": 1, "GET lifecycle": 1, "PUT lifecycle": 1}


def test_the_rest_of_a_bucket_s_rules_is_kept(
    moto: tuple[str, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From which size on its other rules move objects is no rule, but goes with them."""
    settings = new_settings(moto[0], "s3fs")
    client = admin_client(settings)
    name, small = "TransitionDefaultMinimumObjectSize", "varies_by_storage_class"
    given: dict[str, object] = {}
    rules = client.get_bucket_lifecycle_configuration
    monkeypatch.setattr("tieredstore.providers.s3_admin.admin_client", lambda _: client)
    monkeypatch.setattr(
        client,
        "get_bucket_lifecycle_configuration",
        lambda **asked: {**rules(**asked), name: small},
    )
    monkeypatch.setattr(
        client, "put_bucket_lifecycle_configuration", lambda **put: given.update(put)
    )
    create_bucket(settings)
    assert given[name] == small
