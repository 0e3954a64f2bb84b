"""An object store in memory, with a real one's conditions, and an S3 server to try a tier on:

python -m tieredstore.testing.memory_objects --port 9000
"""

from __future__ import annotations

import argparse
import io
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tieredstore.driver.object_client import (
    KEYS_PER_REQUEST,
    UPLOAD_PART_BYTES,
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectClient,
    ObjectExistsError,
    ObjectFacts,
    once,
)
from tieredstore.driver.object_requests import settling
from tieredstore.driver.segment import Buffer, check_range
from tieredstore.model.errors import SegmentNotFoundError, StoreClosedError, TieredStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class MemoryObjects:
    """The objects in a bucket; they outlive the clients."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, ObjectFacts]] = {}
        self.uploads: dict[str, AbandonedUpload] = {}
        self.guard = threading.Lock()
        self._number = itertools.count(1)

    def held_keys(self, prefix: str = "") -> list[str]:
        with self.guard:
            return sorted(key for key in self.held if key.startswith(prefix))

    def put(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str] | None,
        *,
        if_absent: bool = False,
    ) -> ObjectFacts:
        with self.guard:
            if if_absent and key in self.held:
                raise ObjectExistsError(key)
            facts = ObjectFacts(
                key=key,
                size=len(data),
                etag=f"etag-{next(self._number)}",
                metadata=dict(metadata or {}),
            )
            self.held[key] = data, facts
            return facts

    def begin_upload(self, key: str) -> AbandonedUpload:
        with self.guard:
            upload = AbandonedUpload(key, f"upload-{next(self._number)}")
            self.uploads[upload.upload_id] = upload
            return upload


class MemoryObjectClient(ObjectClient):
    """One process in front of a `MemoryObjects`; `requests` counts what a store would bill."""

    def __init__(self, objects: MemoryObjects | None = None) -> None:
        self.objects = objects or MemoryObjects()
        self.requests: Counter[str] = Counter()
        self.held_bytes_max = 0  # the most that one upload held at any time
        self._closed = False

    def head(self, key: str) -> ObjectFacts:
        self._count("head")
        return self._found(key)[1]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if not length:
            self._check_open()
            return b""
        self._count("get")
        data, facts = self._found(key)
        check_range(key, start, length, facts.size)
        return data[start : start + length]

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        self._count("put")
        return self.objects.put(key, bytes(data), metadata, if_absent=if_absent)

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        """Counted as a put for each 16 MiB of a long stream, and one more that completes it."""
        self._check_open()
        whole, waiting = bytearray(), 0
        upload: AbandonedUpload | None = None
        try:
            for block in blocks:
                view = memoryview(block).cast("B")
                whole += view
                waiting += len(view)
                self.held_bytes_max = max(self.held_bytes_max, waiting)
                while waiting > UPLOAD_PART_BYTES:
                    upload = upload or self.objects.begin_upload(key)
                    attempt(lambda: self._count("put"))
                    waiting -= UPLOAD_PART_BYTES
            if not whole:
                return None

            def put() -> ObjectFacts:
                return self.put(key, whole, metadata=metadata, if_absent=if_absent)

            return attempt(settling(put, self.head, key, len(whole), metadata))
        finally:
            if upload is not None:
                self.objects.uploads.pop(upload.upload_id, None)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        while True:
            self._count("list")
            with self.objects.guard:
                found = sorted(
                    (key, facts.size)
                    for key, (_, facts) in self.objects.held.items()
                    if key.startswith(prefix) and key > after
                )
            for key, size in found[:KEYS_PER_REQUEST]:
                yield ListedKey(key, size)
            if len(found) <= KEYS_PER_REQUEST:
                return
            after = found[KEYS_PER_REQUEST - 1][0]

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        self._check_open()
        for start in range(0, len(keys), KEYS_PER_REQUEST):
            self._count("delete")
            with self.objects.guard:
                for key in keys[start : start + KEYS_PER_REQUEST]:
                    self.objects.held.pop(key, None)
        return {}

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        self._count("list")
        with self.objects.guard:
            return [
                upload for upload in self.objects.uploads.values() if upload.key.startswith(prefix)
            ]

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._count("delete")
        with self.objects.guard:
            self.objects.uploads.pop(upload.upload_id, None)

    def close(self) -> None:
        self._closed = True

    def _found(self, key: str) -> tuple[bytes, ObjectFacts]:
        with self.objects.guard:
            try:
                return self.objects.held[key]
            except KeyError:
                raise SegmentNotFoundError(key) from None

    def _count(self, operation: str) -> None:
        self._check_open()
        with self.objects.guard:
            self.requests[operation] += 1

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the client of the object store is closed")


log = logging.getLogger(__name__)


def one_at_a_time(application: WSGIApplication) -> WSGIApplication:
    """The same application, one request at a time; a request begins when its body is complete."""
    turn = threading.Lock()

    def call(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"] = io.BytesIO(_body(environ))
        with turn:
            return application(environ, start)

    return call


def _body(environ: WSGIEnvironment) -> bytes:
    read: Callable[..., bytes] = environ["wsgi.input"].read
    if environ.get("wsgi.input_terminated"):  # the server ends the stream, even of chunked bodies
        return read()
    return read(int(environ.get("CONTENT_LENGTH") or 0))


def moto_application() -> Any:
    """Moto's S3, one request at a time. It keeps everything in memory and takes any keys.

    Moto's dispatcher is left out: it lists the folders of all its services for each request.
    """
    from moto.moto_server.werkzeug_app import create_backend_app

    return one_at_a_time(create_backend_app("s3"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve on 127.0.0.1 until interrupted; the address is one line on stderr."""
    from werkzeug.serving import make_server

    parser = argparse.ArgumentParser(description="An S3 server in memory, to try a tier on.")
    parser.add_argument("--port", type=int, default=9000, help="0: any that is free")
    port = parser.parse_args(arguments).port
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it logs every request
    with make_server("127.0.0.1", port, moto_application(), threaded=True) as server:
        log.info("http://127.0.0.1:%d", server.server_port)
        server.serve_forever()


if __name__ == "__main__":
    main()
