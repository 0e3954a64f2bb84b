"""Every promise of `ObjectClient` as a test suite.

class TestMyClient(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return MyClient(...)  # over an empty bucket or prefix
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tieredstore.driver.certify import certify
from tieredstore.driver.object_client import (
    AbandonedUpload,
    ListedKey,
    ObjectClient,
    ObjectExistsError,
    Range,
)
from tieredstore.driver.object_requests import CountedClient
from tieredstore.driver.runtime import ThreadPool
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import OffsetOutOfRangeError, SegmentNotFoundError, StoreClosedError

DATA = bytes(range(256)) * 4
MIB = 1024 * 1024
T = TypeVar("T")


class ObjectClientContract:
    """Subclass it, define `open_client`, and run it with pytest."""

    @abstractmethod
    def open_client(self) -> ObjectClient:
        """A client of an empty store; the objects need not outlive the test."""
        raise NotImplementedError

    @pytest.fixture
    def client(self) -> Iterator[ObjectClient]:
        with self.open_client() as client:
            yield client

    def test_an_object_is_there_at_once_and_whole(self, client: ObjectClient) -> None:
        put = client.put("a/b", DATA)
        assert (put.key, put.size) == ("a/b", len(DATA))
        found = client.head("a/b")
        assert (found.key, found.size, found.etag) == ("a/b", len(DATA), put.etag)
        assert client.get_range("a/b", 0, len(DATA)) == DATA
        assert list(client.list()) == [ListedKey("a/b", len(DATA))]

    def test_metadata_comes_back(self, client: ObjectClient) -> None:
        if not client.capabilities.metadata:
            pytest.skip("this store keeps no metadata")
        metadata = {"nonce": "n-1", "tier-crc32c": "00ff", "words": "a b"}
        assert client.put("put", DATA, metadata=metadata).metadata == metadata
        assert client.head("put").metadata == metadata
        client.put_stream("stream", [DATA], metadata=metadata)
        assert client.head("stream").metadata == metadata
        client.put("none", DATA)
        assert client.head("none").metadata == {}

    @pytest.mark.parametrize("data", [b"", b"x", bytearray(b"xy"), memoryview(b"-xyz")[1:]])
    def test_any_buffer_is_an_object_also_an_empty_one(
        self, client: ObjectClient, data: Buffer
    ) -> None:
        assert client.put("k", data).size == len(data)
        assert client.head("k").size == len(data)
        assert client.get_range("k", 0, len(data)) == bytes(data)
        assert list(client.list()) == [ListedKey("k", len(data))]

    def test_what_is_absent_is_not_found(self, client: ObjectClient) -> None:
        client.put("folder/there", DATA)
        for key in ("absent", "folder", "folder/ther", "folder/there/below"):
            with pytest.raises(SegmentNotFoundError):
                client.head(key)
            with pytest.raises(SegmentNotFoundError):
                client.get_range(key, 0, 1)
        assert list(client.list("absent")) == []

    def test_an_object_is_created_only_where_there_is_none(self, client: ObjectClient) -> None:
        client.put("k", b"first")
        with pytest.raises(ObjectExistsError):
            client.put("k", b"second")
        with pytest.raises(ObjectExistsError):
            client.put_stream("k", [b"third"])
        assert client.get_range("k", 0, 5) == b"first"

    def test_an_object_is_replaced_on_request(self, client: ObjectClient) -> None:
        first = client.put("k", b"first", if_absent=False)
        second = client.put("k", b"other", if_absent=False)
        assert client.get_range("k", 0, 5) == b"other"
        assert first.etag != second.etag
        client.put_stream("k", [b"third"], if_absent=False)
        assert client.get_range("k", 0, 5) == b"third"

    def test_of_a_replaced_object_nothing_is_left(self, client: ObjectClient) -> None:
        client.put("k", b"first", metadata={"nonce": "1"})
        client.head("k")
        list(client.list())
        client.put("k", b"a longer one", metadata={"nonce": "2"}, if_absent=False)
        self._holds(client, b"a longer one", "2")
        long = bytes(range(256)) * 4_096 * 17
        client.put_stream("k", [long], metadata={"nonce": "3"}, if_absent=False)
        self._holds(client, long, "3")

    def _holds(self, client: ObjectClient, data: bytes, nonce: str) -> None:
        found = client.head("k")
        assert found.size == len(data)
        if client.capabilities.metadata:
            assert found.metadata == {"nonce": nonce}
        assert list(client.list()) == [ListedKey("k", len(data))]
        assert client.get_range("k", 0, len(data)) == data

    def test_of_racing_writers_one_creates(self, client: ObjectClient) -> None:
        pool = ThreadPool("race", threads=8, pending_max=8)
        try:
            futures = [pool.submit(client.put, "k", b"%d" % number) for number in range(8)]
            won = [number for number, future in enumerate(futures) if future.exception() is None]
        finally:
            pool.close()
        assert len(won) == 1
        assert client.get_range("k", 0, 1) == b"%d" % won[0]

    @pytest.mark.parametrize(
        ("start", "length"), [(0, 1), (1, 255), (1023, 1), (0, 1024), (512, 0), (1024, 0)]
    )
    def test_a_range_is_exactly_that_range(
        self, client: ObjectClient, start: int, length: int
    ) -> None:
        client.put("k", DATA)
        data = client.get_range("k", start, length)
        assert type(data) is bytes
        assert data == DATA[start : start + length]

    @pytest.mark.parametrize(
        ("start", "length"), [(1023, 2), (1024, 1), (5_000, 10), (0, 1025), (-1, 1), (0, -1)]
    )
    def test_a_range_beyond_the_end_is_an_error(
        self, client: ObjectClient, start: int, length: int
    ) -> None:
        client.put("k", DATA)
        with pytest.raises(OffsetOutOfRangeError):
            client.get_range("k", start, length)

    def test_many_ranges_come_in_order_and_errors_stay_in_their_place(
        self, client: ObjectClient
    ) -> None:
        for number in range(4):
            client.put(f"k-{number}", bytes([number]) * 100)
        wanted = [Range(f"k-{turn % 4}", turn, 3) for turn in range(40)]
        wanted += [Range("absent", 0, 3), Range("k-0", 99, 2), Range("k-0", 3, 0)]
        found = client.get_ranges(wanted)
        assert found[:40] == [bytes([turn % 4]) * 3 for turn in range(40)]
        assert isinstance(found[40], SegmentNotFoundError)
        assert isinstance(found[41], OffsetOutOfRangeError)
        assert found[42] == b""
        assert isinstance(client.get_ranges([Range("absent", 0, 1)])[0], SegmentNotFoundError)

    @pytest.mark.parametrize("size", [1, 3 * MIB, 16 * MIB, 33 * MIB + 5])
    def test_a_stream_becomes_one_object(self, client: ObjectClient, size: int) -> None:
        block = bytes(range(251)) * 4_096

        def blocks() -> Iterator[Buffer]:
            left = size
            while left:
                piece = block[: min(left, len(block))]
                left -= len(piece)
                yield memoryview(piece)
                yield b""

        facts = client.put_stream("k", blocks(), metadata={"nonce": "n"})
        assert facts is not None
        assert facts.size == size
        found = client.head("k")
        assert (found.size, found.etag) == (size, facts.etag)
        period = len(block)
        for start in (0, size // 2, size - 1):
            assert client.get_range("k", start, 1) == block[start % period : start % period + 1]
        with pytest.raises(ObjectExistsError):
            client.put_stream("k", blocks())
        assert client.head("k").etag == facts.etag
        assert list(client.abandoned_uploads()) == []

    def test_a_stream_without_bytes_makes_nothing(self, client: ObjectClient) -> None:
        assert client.put_stream("k", [b"", b""]) is None
        assert client.put_stream("k", []) is None
        assert list(client.list()) == []

    @pytest.mark.parametrize("size", [10, 20 * MIB])
    def test_a_stream_that_breaks_off_leaves_nothing(self, client: ObjectClient, size: int) -> None:
        def broken() -> Iterator[bytes]:
            yield bytes(size)
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            client.put_stream("k", broken())
        assert list(client.list()) == []
        assert list(client.abandoned_uploads()) == []
        client.put("k", b"there before")
        with pytest.raises(RuntimeError, match="the source broke"):
            client.put_stream("k", broken(), if_absent=False)
        assert client.get_range("k", 0, 12) == b"there before"

    @pytest.mark.parametrize("size", [10, 20 * MIB])
    def test_each_request_of_a_stream_may_be_tried_again(
        self, client: ObjectClient, size: int
    ) -> None:
        if not client.capabilities.metadata:
            pytest.skip("this store keeps no metadata, by which a client knows its own")
        lost = 0

        def attempt(call: Callable[[], T], /) -> T:
            nonlocal lost
            call()  # it takes effect, but its reply is lost
            lost += 1
            return call()

        data = bytes(size)
        put = client.put_stream("k", [data], metadata={"nonce": "n-1"}, attempt=attempt)
        assert lost
        assert put is not None
        assert (put.size, client.head("k").metadata) == (size, {"nonce": "n-1"})
        assert client.get_range("k", 0, size) == data

    def test_a_listing_has_everything_that_begins_so(self, client: ObjectClient) -> None:
        keys = ["a/1", "a/10", "a/100", "a/2", "a-b", "ab/1", "b/104857600", "b/1048576000"]
        for key in keys:
            client.put(key, b"x")

        def listed(prefix: str, after: str = "") -> list[str]:
            return [found.key for found in client.list(prefix, after=after)]

        assert listed("") == sorted(keys)
        for prefix in ("a", "a/", "a/1", "a/10", "ab", "b/104857600", "c", "a/1/"):
            assert listed(prefix) == sorted(key for key in keys if key.startswith(prefix))
        assert listed("", "a/10") == sorted(key for key in keys if key > "a/10")
        assert listed("a/", "a/1") == ["a/10", "a/100", "a/2"]
        assert listed("b/", "a") == ["b/104857600", "b/1048576000"]

    def test_a_listing_is_complete_however_long(self, client: ObjectClient) -> None:
        pool = ThreadPool("puts", threads=8, pending_max=8)
        try:
            keys = [f"page/{number:05}" for number in range(1_003)]
            for future in [pool.submit(client.put, key, b"x") for key in keys]:
                future.result()
        finally:
            pool.close()
        assert [found.key for found in client.list("page/")] == keys
        assert [found.key for found in client.list("page/", after=keys[1_000])] == keys[1_001:]
        assert client.delete_many(keys) == {}
        assert list(client.list()) == []

    @pytest.mark.parametrize(
        "key",
        [
            "%RETRY%group/0",
            "%DLQ%a|b",
            "topic with space",
            "主题/队列",
            "a.b-c_d~e",
            "...",
            "a::b",
            "a+b=c&d;e,f@g$h!i(j)",
            "a#b?c*d",
            "<x>\"'`^{}[]",
            "%2F/%20/%",
            "t" * 255,
        ],
    )
    def test_a_key_is_kept_as_it_is(self, client: ObjectClient, key: str) -> None:
        for name in (key, f"{key}/below", f"x/{key}"):
            if name == f"{key}/below" and not client.capabilities.paged_uploads:
                continue  # a file cannot be a folder too
            client.put(name, DATA)
            assert client.head(name).size == len(DATA)
            assert client.get_range(name, 1, 3) == DATA[1:4]
            assert client.get_ranges([Range(name, 2, 1), Range(name, 3, 1)]) == [b"\2", b"\3"]
            assert list(client.list(name)) == [ListedKey(name, len(DATA))]
            assert client.delete_many([name]) == {}
            assert list(client.list()) == []

    def test_deleting_is_idempotent_and_takes_only_what_is_named(
        self, client: ObjectClient
    ) -> None:
        for key in ("seg-104857600", "seg-1048576000", "other"):
            client.put(key, b"x")
        assert client.delete_many(["seg-104857600", "absent", "seg-104857600"]) == {}
        assert [found.key for found in client.list()] == ["other", "seg-1048576000"]
        assert client.delete_many(["seg-104857600"]) == {}
        client.put("seg-104857600", b"again")

    def test_a_deleted_object_is_nowhere(self, client: ObjectClient) -> None:
        for key in ("a", "c"):
            client.put(key, DATA)
            client.head(key)
            client.get_range(key, 0, 1)
        assert client.delete_many(["a", "b", "c"]) == {}  # the one in the middle does not exist
        for key in ("a", "c"):
            with pytest.raises(SegmentNotFoundError):
                client.head(key)
            with pytest.raises(SegmentNotFoundError):
                client.get_range(key, 0, 1)
        assert list(client.list()) == []

    def test_an_unknown_upload_is_thrown_away_without_a_word(self, client: ObjectClient) -> None:
        client.abort_upload(AbandonedUpload("k", "no-such-upload"))

    def test_a_certificate_says_what_the_capabilities_say(self, client: ObjectClient) -> None:
        certificate = certify(client, page_keys=5)
        failed = {finding.kind for finding in certificate.failures}
        assert failed == (set() if client.capabilities.metadata else {"metadata"})
        assert list(client.list()) == []

    def test_a_counted_client_sends_the_same(self, client: ObjectClient) -> None:
        counted = CountedClient(client)
        counted.put("k", DATA)
        assert counted.get_range("k", 0, 4) == DATA[:4]
        assert [found.key for found in counted.list()] == ["k"]
        assert counted.counts.snapshot() == {"put": 1, "list": 1, "get": 1, "head": 0, "delete": 0}

    def test_a_closed_client_does_nothing_more(self) -> None:
        client = self.open_client()
        client.put("k", DATA)
        client.close()
        client.close()
        for call in (
            lambda: client.head("k"),
            lambda: client.get_range("k", 0, 1),
            lambda: client.get_range("k", 0, 0),
            lambda: client.put("l", DATA),
            lambda: client.put_stream("l", [DATA]),
            lambda: list(client.list()),
            lambda: client.delete_many(["k"]),
            client.abandoned_uploads,
        ):
            with pytest.raises(StoreClosedError):
                call()
