"""What stores other than S3 answer, and what the clients make of it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from werkzeug.wrappers import Response

from tests.s3.moto_server import Door, delete_result, list_result, moto_server, not_deleted
from tests.s3.s3_clients import CLIENTS, new_client, new_settings, settings_at
from tieredstore.driver.object_client import AbandonedUpload
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError
from tieredstore.providers import s3fs
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.s3_admin import NoRulesError, abort_abandoned_uploads, create_bucket
from tieredstore.roundlog.inspection import names_below
from tieredstore.roundlog.object_calls import ObjectCalls

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (501, "NotImplemented"),
        (400, "InvalidArgument"),  # a store with other rules
        (409, "BucketAlreadyExists"),  # a store that takes this for a request to create the bucket
    ],
)
def test_a_bucket_is_set_up_where_the_store_takes_no_rules(
    moto: tuple[str, Door],
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    status: int,
    code: str,
) -> None:
    endpoint, door = moto
    request.addfinalizer(door.answers.clear)
    door.answers["GET lifecycle"] = Response("<Other/>", 200)
    door.answers["PUT lifecycle"] = Response(f"<Error><Code>{code}</Code></Error>", status)
    settings = new_settings(endpoint, "s3fs")
    assert f"{status} {code}: this store takes no rule for abandoned uploads" in caplog.text
    with pytest.raises(NoRulesError):
        abort_abandoned_uploads(settings)
    door.answers["PUT"] = Response("<Error><Code>BucketAlreadyExists</Code></Error>", 409)
    create_bucket(settings)  # the bucket is ours, since it lets us in
    door.answers["HEAD"] = Response("", 403)
    with pytest.raises(BackendRefusedError, match="create_bucket"):
        create_bucket(settings)


@pytest.mark.parametrize("name", CLIENTS)
def test_objects_are_deleted_where_the_store_has_no_batch_delete(
    moto: tuple[str, Door], door: Door, name: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        for key in ("a", "b", "c"):
            client.put(key, b"x")
        door.answers["DELETE-MANY"] = Response(
            "<Error><Code>NotImplemented</Code></Error>", 501, content_type="application/xml"
        )
        assert client.delete_many(["a", "b", "absent"]) == {}
        assert [found.key for found in client.list()] == ["c"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_batch_delete_names_each_key_once(moto: tuple[str, Door], door: Door, name: str) -> None:
    endpoint, _ = moto
    deleted = "".join(f"<Deleted><Key>some/tier/{key}</Key></Deleted>" for key in "ab")
    with new_client(endpoint, name) as client:
        door.answers["DELETE-MANY"] = delete_result(deleted)
        assert client.delete_many(["a", "b", "a"]) == {}
        assert door.asked.count(b"<Key>") == 2


@pytest.mark.parametrize("name", CLIENTS)
def test_a_key_that_a_batch_delete_reports_as_absent_is_no_error(
    moto: tuple[str, Door], door: Door, name: str
) -> None:
    endpoint, _ = moto

    def reply(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        asked = re.findall(r"<Key>(.*?)</Key>", door.asked.decode())
        said = "".join(
            not_deleted(key, "NoSuchKey")
            if key.endswith("absent")
            else f"<Deleted><Key>{key}</Key></Deleted>"
            for key in asked
        )
        return delete_result(said)(environ, start)

    with new_client(endpoint, name) as client:
        door.answers["DELETE-MANY"] = reply
        assert client.delete_many(["a", "absent", "b"]) == {}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("said", ["some%2Ftier%2Fb", "b", "some/tier/c"])
def test_a_batch_delete_that_fails_at_a_key_nobody_named_has_deleted_nothing(
    moto: tuple[str, Door], door: Door, name: str, said: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["DELETE-MANY"] = delete_result(not_deleted(said, "AccessDenied"))
        errors = client.delete_many(["a", "b"])
        assert {key: type(error) for key, error in errors.items()} == dict.fromkeys(
            "ab", BackendUnavailableError
        )


def test_a_key_that_is_reported_as_absent_in_percent_encoding_is_no_error(
    moto: tuple[str, Door], door: Door
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, "s3fs") as client:  # obstore fails at such a name
        door.answers["DELETE-MANY"] = delete_result(not_deleted("some%2Ftier%2Fb", "NoSuchKey"))
        assert client.delete_many(["a", "b"]) == {}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("code", ["SlowDown", "Throttling", "RequestTimeout"])
def test_a_key_that_a_busy_store_does_not_delete_is_no_matter_of_rights(
    moto: tuple[str, Door], door: Door, name: str, code: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["DELETE-MANY"] = delete_result(not_deleted("some/tier/a", code))
        error = client.delete_many(["a"])["a"]
        assert isinstance(error, BackendUnavailableError)
        assert "the store was reached and fails at this request" in str(error)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_listing_begins_where_asked_at_a_store_that_ignores_it(
    moto: tuple[str, Door], door: Door, name: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["LIST"] = list_result(
            ["some/tier/x/a/1", "some/tier/x/b/1", "some/tier/x/b/2"]
        )
        assert [found.key for found in client.list("x/", after="x/b/1")] == ["x/b/2"]
        calls = ObjectCalls(client, Runtime.inline(), RetryPolicy())
        assert [*itertools.islice(names_below(calls, "x/"), 3)] == ["a", "b"]


def test_a_listing_that_always_begins_again_comes_to_an_end(
    moto: tuple[str, Door], door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = moto
    monkeypatch.setattr(s3fs, "EMPTY_PAGES_MAX", 10)
    tokens = itertools.count()

    def page(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        return list_result(["some/tier/k"], f"t{next(tokens)}")(environ, start)

    with new_client(endpoint, "s3fs") as client:
        door.answers["LIST"] = page
        with pytest.raises(BackendUnavailableError, match="its pages do not end"):
            list(client.list(after="k"))


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("key", ["some/else/k", "somebody/tier/k", "some%2Ftier%2Fk"])
def test_keys_of_another_place_are_no_listing(
    moto: tuple[str, Door], door: Door, name: str, key: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["LIST"] = list_result([key])
        with pytest.raises(BackendUnavailableError, match=key):
            list(client.list("k"))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_mark_that_a_console_makes_of_a_folder_is_no_key(
    moto: tuple[str, Door], door: Door, name: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["LIST"] = list_result(["some/tier/", "some/tier/k"])
        assert [found.key for found in client.list()] == ["k"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_page_of_a_proxy_deletes_nothing(moto: tuple[str, Door], door: Door, name: str) -> None:
    endpoint, _ = moto
    page = Response("<html><body>log in</body></html>", content_type="text/html; charset=utf-8")
    with new_client(endpoint, name) as client:
        client.put("a", b"x")
        door.answers["DELETE-MANY"] = page
        errors = client.delete_many(["a"])
        assert isinstance(errors["a"], BackendUnavailableError)
        door.answers["DELETE uploadId"] = page
        with pytest.raises(BackendUnavailableError):
            client.abort_upload(AbandonedUpload("a", "id"))
        door.answers["DELETE-MANY"] = Response("<Error><Code>NotImplemented</Code></Error>", 501)
        door.answers["DELETE"] = Response("default backend - 404", 404)
        door.answers["DELETE uploadId"] = Response("default backend - 404", 404)
        errors = client.delete_many(["a"])
        assert isinstance(errors["a"], BackendUnavailableError)
        with pytest.raises(BackendUnavailableError):
            client.abort_upload(AbandonedUpload("a", "id"))


@pytest.mark.parametrize("name", CLIENTS)
def test_there_are_no_uploads_where_the_store_says_so_with_an_error(
    moto: tuple[str, Door], door: Door, name: str
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, name) as client:
        door.answers["GET uploads"] = Response(
            "<Error><Code>NoSuchUpload</Code></Error>", 404, content_type="application/xml"
        )
        assert list(client.abandoned_uploads()) == []


def test_the_end_of_an_upload_repeats_the_checksums_that_the_store_told(
    moto: tuple[str, Door], door: Door
) -> None:
    endpoint, _ = moto
    with new_client(endpoint, "s3fs", checksum="crc64nvme") as client:
        door.answers["PUT uploadId"] = Response(
            "", 200, headers={"ETag": '"part"', "x-amz-checksum-crc64nvme": "AAAAAAAAAAE="}
        )
        door.answers["POST uploadId"] = Response("<Error><Code>Seen</Code></Error>", 400)
        with pytest.raises(BackendRefusedError, match="Seen"):
            client.put_stream("k", [bytes(MIB)] * 17)
        assert door.asked.count(b"<ChecksumCRC64NVME>AAAAAAAAAAE=</ChecksumCRC64NVME>") == 2


@pytest.mark.parametrize("name", CLIENTS)
def test_a_certificate_that_nobody_vouches_for_is_refused_and_said(
    s3_environment: None, name: str
) -> None:
    with moto_server(tls=True) as (endpoint, _):
        settings = settings_at(endpoint, name)
        said = pytest.raises(BackendRefusedError, match="certificate is not trusted: .*AWS_CA_B")
        with open_client(settings) as client, said:
            client.put("k", b"x")
