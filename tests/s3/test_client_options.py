"""Options of both S3 clients reach the wire, and degrade as they say."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from tests.s3.moto_server import Door
from tests.s3.s3_clients import CLIENTS, new_client, new_settings
from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.providers.object_clients import open_client
from tieredstore.providers.s3_admin import admin_client, create_bucket

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
@pytest.mark.parametrize("quoted", [True, False])
def test_an_etag_is_quoted_or_not(moto: tuple[str, Door], name: str, quoted: bool) -> None:
    endpoint, door = moto
    with new_client(endpoint, name, etag_quoting=quoted) as client:
        first = client.put("k", b"x")
        client.put("k", b"y", if_match=first.etag)
        assert first.etag.startswith('"')
        assert door.headers["if-match"] == (first.etag if quoted else first.etag.strip('"'))


@pytest.mark.parametrize("name", CLIENTS)
def test_without_conditions_a_look_comes_first_and_the_capabilities_say_so(
    moto: tuple[str, Door], name: str
) -> None:
    endpoint, door = moto
    with new_client(endpoint, name, conditional_put=False) as client:
        assert not client.capabilities.create_only
        assert not client.capabilities.if_match
        first = client.put("k", b"first")
        door.requests()
        with pytest.raises(ObjectExistsError):
            client.put("k", b"second")
        assert door.requests() == {"HEAD": 1}
        client.put("k", b"third", if_match=first.etag)
        assert door.requests() == {"HEAD": 1, "PUT": 1}
        assert "if-match" not in door.headers
        with pytest.raises(ObjectExistsError):
            client.put("k", b"fourth", if_match=first.etag)
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
def test_the_bucket_may_be_in_the_host_s_name(moto: tuple[str, Door], name: str) -> None:
    settings = new_settings(moto[0], name)
    host = f"{settings.bucket}.localhost"
    try:
        socket.getaddrinfo(host, 80)
    except OSError:
        pytest.skip("this machine does not resolve names below localhost")
    port = moto[0].rpartition(":")[2]
    virtual = dataclasses.replace(
        settings, endpoint=f"http://localhost:{port}", addressing="virtual"
    )
    with open_client(virtual) as client:
        client.put("k", b"x")
        assert client.get_range("k", 0, 1) == b"x"


@pytest.mark.parametrize("name", CLIENTS)
def test_it_is_certified(moto: tuple[str, Door], name: str) -> None:
    with new_client(moto[0], name) as client:
        certificate = certify(client)
        assert certificate.failures == ()
        assert certificate.elapsed_ms < 60_000
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
        # Keys of others that obstore does not parse are listed by the second client.
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
