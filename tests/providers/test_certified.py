"""A store proves once, before its first write, that it keeps its word; else nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver.test_certify import IgnoresRanges
from tests.providers.object_kit import CLUSTER, PATH
from tieredstore.driver.certify import Certificate, certify
from tieredstore.driver.object_client import (
    KeysExpiredError,
    ListedKey,
    ObjectClient,
    ObjectClientWrapper,
    ObjectFacts,
)
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
)
from tieredstore.model.findings import Finding
from tieredstore.model.values import SegmentType
from tieredstore.providers.certified import (
    Certification,
    certificate_key,
    examined,
    keep,
    kept_verdict,
)
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

LOG = SegmentType.COMMIT_LOG
PAGE_KEYS = 5


class IgnoresConditions(ObjectClientWrapper):
    def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
        return self.inner.put(key, data, metadata=options.get("metadata"), if_absent=False)


class Unreachable(ObjectClientWrapper):
    def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
        raise BackendUnavailableError(key, "put", "no route")


def a_provider(client: ObjectClient, mode: str = "require") -> ObjectProvider:
    certification = Certification(mode, page_keys=PAGE_KEYS)
    return ObjectProvider(client, CLUSTER, Runtime.inline(), certification=certification)


def puts_of_a_write(client: MemoryObjectClient, mode: str = "require") -> int:
    """How many puts a new process needs for its first write."""
    client.requests.clear()
    segment = a_provider(client, mode).open(PATH, LOG, 0)
    try:
        position = segment.size()
    except FileNotFoundError:
        position = 0
    segment.write(position, b"data")
    return client.requests["put"]


def test_the_first_write_asks_and_later_ones_and_later_processes_do_not() -> None:
    objects = MemoryObjects()
    provider = a_provider(MemoryObjectClient(objects))
    segment = provider.open(PATH, LOG, 0)
    assert objects.held_keys() == []
    segment.write(0, b"data")
    assert len(objects.held_keys(".certify/")) == 1
    client = MemoryObjectClient(objects)
    later = a_provider(client).open(PATH, LOG, 0)
    assert later.read(0, 4) == b"data"
    assert client.requests["put"] == 0
    later.write(4, b"more")
    assert client.requests["put"] == 3  # a claim, its entry, the bytes
    later.write(8, b"more")
    assert client.requests["put"] == 4


def test_who_only_reads_never_asks() -> None:
    client = MemoryObjectClient()
    provider = a_provider(client)
    assert list(provider.list()) == []
    with pytest.raises(FileNotFoundError):
        provider.open(PATH, LOG, 0).size()
    assert client.requests["put"] == 0


def test_a_store_that_lies_is_not_written_to() -> None:
    objects = MemoryObjects()
    provider = a_provider(IgnoresConditions(MemoryObjectClient(objects)))
    for _ in range(2):
        with pytest.raises(BackendRefusedError, match="create-only.*certify=warn"):
            provider.open(PATH, LOG, 0).write(0, b"data")
    assert all(key.startswith(".certify/") for key in objects.held_keys())


def test_unless_it_is_told_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    objects = MemoryObjects()
    for mode in ("warn", "warn", "off"):
        caplog.clear()
        client = IgnoresConditions(MemoryObjectClient(objects))
        with caplog.at_level(logging.WARNING):
            segment = a_provider(client, mode).open(PATH, LOG, 0)
            segment.write(0, b"data")
            segment.delete()
        assert ("nevertheless" in caplog.text) == (mode == "warn")


class Lucky(ObjectClientWrapper):
    """A store that lies until a test makes it honest."""

    lies = True

    def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
        if self.lies:
            options = {"metadata": options.get("metadata"), "if_absent": False}
        return self.inner.put(key, data, **options)


def test_a_store_that_failed_once_stays_refused_whatever_its_luck() -> None:
    objects = MemoryObjects()
    store = Lucky(MemoryObjectClient(objects))
    running = a_provider(store)
    with pytest.raises(BackendRefusedError, match="certify --again"):
        running.open(PATH, LOG, 0).write(0, b"data")
    store.lies = False
    client = MemoryObjectClient(objects)
    for provider in (running, running, a_provider(store), a_provider(client)):
        client.requests.clear()
        with pytest.raises(BackendRefusedError, match="certify --again"):
            provider.open(PATH, LOG, 0).write(0, b"data")
        assert client.requests["put"] == 0  # the store is not asked at all
    assert puts_of_a_write(client, "warn") == 3


def test_a_failure_that_this_store_cannot_show_refuses_the_next_process_too() -> None:
    client = IgnoresRanges(MemoryObjectClient(MemoryObjects()))
    for _ in range(2):
        with pytest.raises(BackendRefusedError, match="read-after-write"):
            a_provider(client).open(PATH, LOG, 0).write(0, b"data")
        assert not examined(client, again=True, page_keys=PAGE_KEYS).passed


def test_asked_again_it_may_be_trusted_and_a_running_writer_sees_that() -> None:
    objects = MemoryObjects()
    store = Lucky(MemoryObjectClient(objects))
    running = a_provider(store)
    with pytest.raises(BackendRefusedError):
        running.open(PATH, LOG, 0).write(0, b"data")
    again = examined(store, again=True, page_keys=PAGE_KEYS)
    assert not again.passed
    store.lies = False
    assert examined(store, page_keys=PAGE_KEYS) == again  # the kept verdict
    assert examined(store, again=True, page_keys=PAGE_KEYS).passed
    running.open(PATH, LOG, 0).write(0, b"data")
    assert puts_of_a_write(MemoryObjectClient(objects)) == 3


def test_a_failure_that_could_not_be_kept_is_not_forgotten_by_its_process() -> None:
    objects = MemoryObjects()

    class ForgetsTheVerdict(Lucky):
        def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
            facts = super().put(key, data, **options)
            if "certificate" in key:
                self.inner.delete_many([key])
            return facts

    store = ForgetsTheVerdict(MemoryObjectClient(objects))
    provider = a_provider(store)
    for lies in (True, False):
        store.lies = lies
        with pytest.raises(BackendRefusedError, match="not to be trusted"):
            provider.open(PATH, LOG, 0).write(0, b"data")


def test_of_two_processes_that_ask_at_once_the_failure_counts() -> None:
    objects = MemoryObjects()

    class Meanwhile(ObjectClientWrapper):
        """While this process checks the store, another one keeps a bad verdict."""

        asked = 0

        def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
            self.asked += 1
            if self.asked == 20:
                keep(self.inner, certify_lying(objects))
            return self.inner.put(key, data, **options)

    store = Meanwhile(MemoryObjectClient(objects))
    with pytest.raises(BackendRefusedError, match="not to be trusted"):
        a_provider(store).open(PATH, LOG, 0).write(0, b"data")
    assert store.asked > 20


def test_an_operator_who_only_asks_leaves_no_more_than_a_failure() -> None:
    objects = MemoryObjects()
    store = Lucky(MemoryObjectClient(objects))
    store.lies = False
    assert examined(store, page_keys=PAGE_KEYS).passed
    assert objects.held_keys() == []
    store.lies = True
    failed = examined(store, page_keys=PAGE_KEYS)
    assert len(objects.held_keys()) == 1
    assert kept_verdict(store) == failed


def certify_lying(objects: MemoryObjects) -> Certificate:
    found = certify(IgnoresConditions(MemoryObjectClient(objects)), page_keys=PAGE_KEYS)
    assert not found.passed
    honest = MemoryObjectClient(objects).describe()
    return Certificate(client=honest, findings=found.findings, elapsed_ms=1)


@pytest.mark.parametrize("kept", [b"", b"1\n{}", b"0\n{}", b"\xff\xfe", b"1\n"])
def test_what_is_no_certificate_is_asked_for_again(kept: bytes) -> None:
    client = MemoryObjectClient()
    client.put(certificate_key(client), kept, if_absent=False)
    assert puts_of_a_write(client) > 10
    assert puts_of_a_write(client) == 3


@pytest.mark.parametrize("create_only", [True, False])
def test_what_an_older_version_said_of_if_match_refuses_no_writer(create_only: bool) -> None:
    client = MemoryObjectClient()
    older = Certificate(
        client=client.describe(),
        findings=(
            Finding.of_check(
                "create-only-race", create_only, "" if create_only else "2 writers won"
            ),
            Finding.of_check("if-match", False, "it wants the ETag without quotes"),
            Finding.of_check("if-match-race", False, "2 of 16 racing writers won"),
        ),
        elapsed_ms=1,
    )
    keep(client, older)
    if create_only:
        assert puts_of_a_write(client) == 3  # the check is not repeated
    else:
        with pytest.raises(BackendRefusedError, match="create-only-race: 2 writers won"):
            puts_of_a_write(client)


def test_a_network_that_fails_is_no_verdict() -> None:
    objects = MemoryObjects()
    provider = a_provider(Unreachable(MemoryObjectClient(objects)))
    with pytest.raises(BackendUnavailableError):
        provider.open(PATH, LOG, 0).write(0, b"data")
    assert objects.held_keys() == []
    assert puts_of_a_write(MemoryObjectClient(objects)) > 10


class KeysExpire(ObjectClientWrapper):
    """Keys expire at this put or listing; the next one has new keys."""

    def __init__(self, inner: ObjectClient, requests: int) -> None:
        super().__init__(inner)
        self.left = requests

    def refuse_expired(self, key: str, operation: str) -> None:
        self.left -= 1
        if self.left == -1:
            raise KeysExpiredError(key, operation, "400 ExpiredToken")

    def put(self, key: str, data: Buffer, **options: Any) -> ObjectFacts:
        self.refuse_expired(key, "put")
        return self.inner.put(key, data, **options)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        self.refuse_expired(prefix, "list")
        return self.inner.list(prefix, after=after)


@pytest.mark.parametrize("requests", [1, 3, 12, 60])
def test_keys_that_expire_meanwhile_are_no_verdict(requests: int) -> None:
    objects = MemoryObjects()
    provider = a_provider(KeysExpire(MemoryObjectClient(objects), requests))
    with pytest.raises(KeysExpiredError):
        provider.open(PATH, LOG, 0).write(0, b"data")
    assert puts_of_a_write(MemoryObjectClient(objects)) > 10  # it checks the store, which passes


def test_what_a_client_says_itself_is_no_reason_to_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = FsspecClient(tmp_path.as_uri())
    assert not client.capabilities.metadata
    with caplog.at_level(logging.WARNING):
        a_provider(client).open(PATH, LOG, 0).write(0, b"data")
    assert "run one writer only" in caplog.text


def test_another_mode_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="certify"):
        Certification("maybe")
