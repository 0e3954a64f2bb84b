"""S3 through s3fs: its connection pool and event loop, but S3's own operations."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import io
import itertools
import zlib
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import google_crc32c

from tieredstore.driver.object_client import (
    KEYS_PER_REQUEST,
    UPLOAD_PART_BYTES,
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectCapabilities,
    ObjectClient,
    ObjectFacts,
    OtherBytesError,
    Range,
    beyond_end,
    check_object_range,
    once,
)
from tieredstore.driver.object_requests import Head, refuse_existing_object, settling
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.providers.s3_errors import (
    error_of_exception,
    error_of_key,
    error_of_reply,
    explained,
    no_batch_delete,
    one_line,
    page_instead,
)
from tieredstore.providers.s3_settings import (
    ObjectStoreSettings,
    PerProcess,
    end_redirects,
    keep_clients_quiet,
)

log = log_of(__name__)

T = TypeVar("T")

# Exceptions of botocore about the request or the credentials, not about the network.
_REFUSED: Final = (
    "InvalidEndpointConfigurationError",
    "InvalidRegionError",
    "NoCredentialsError",
    "NoRegionError",
    "ParamValidationError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
)


class S3fsConnection:
    """Connects on the first call in each process. Does not retry."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._live: PerProcess[Any] = PerProcess(self._connect, _release, settings.place())

    def client(self) -> Any:
        """The filesystem's underlying S3 client, of aiobotocore."""
        return self._live.get().s3

    def check_open(self) -> None:
        self._live.check_open()

    def close(self) -> None:
        self._live.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of ours, which translates its own errors."""
        return self.run_many([work])[0]

    def run_many(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines concurrently, as many as there are connections. Raises the first error."""
        from fsspec.asyn import _run_coros_in_chunks, sync

        try:
            filesystem = self._live.get()
        except BaseException:
            for work in works:
                work.close()
            raise
        if len(works) == 1:
            return sync(filesystem.loop, _listed, works[0])  # type: ignore[no-any-return]
        done: list[T] = sync(
            filesystem.loop,
            _run_coros_in_chunks,
            works,
            batch_size=self._settings.connections_max,
            nofiles=True,
        )
        return done

    def call(self, operation: str, key: str, **asked: Any) -> Mapping[str, Any]:
        """Call an operation whose reply has no body to read."""
        reply: Mapping[str, Any] = self.run(self.called(operation, key, **asked))
        return reply

    async def called(self, operation: str, key: str, **asked: Any) -> Mapping[str, Any]:
        async with self.request(key, operation):
            reply: Mapping[str, Any] = await getattr(self.client(), operation)(**asked)
        if operation in _SILENT or (operation in _PUTS and has_body(reply)):
            refuse_page(reply, key, operation)
        return reply

    @asynccontextmanager
    async def request(self, key: str, operation: str) -> AsyncIterator[None]:
        """A request with a limit on its total time. The client's limit on silence neither ends a
        reply that trickles in nor applies while a body is being sent."""
        with self.translated(key, operation):
            async with asyncio.timeout(self._settings.whole_request_ms / 1000):
                yield

    @contextmanager
    def translated(self, key: str, operation: str) -> Iterator[None]:
        """The only place where errors of s3fs and botocore become ours."""
        keep_clients_quiet()
        try:
            yield
        except TieredStoreError:
            raise
        except Exception as error:  # noqa: BLE001 - layers of clients may raise anything
            ours = self._ours(key, operation, error)
            # The reply may quote a secret: then the cause is not chained.
            raise ours from (None if self._settings.leaks_into(repr(error)) else error)

    def delete_error(self, key: str, entry: Mapping[str, Any]) -> TieredStoreError:
        """The error for one key of a batch."""
        message = self._told(str(entry.get("Message", "")))
        return error_of_key(key, "delete_objects", str(entry.get("Code", "")), message)

    def _ours(self, key: str, operation: str, error: Exception) -> TieredStoreError:
        from botocore.exceptions import ClientError

        if isinstance(error, ClientError):
            said = error.response.get("Error", {})
            told_of = error.response.get("ResponseMetadata", {})
            status = int(told_of.get("HTTPStatusCode", 0))
            code = str(said.get("Code") or "")
            if status == 416 or code == "InvalidRange":
                size = said.get("ActualObjectSize", "")
                end = int(size) if str(size).isdigit() else 0
                return OffsetOutOfRangeError(
                    f"a range of {key}", offset=end + 1, minimum=0, maximum=end
                )
            message = self._told(str(said.get("Message") or ""))
            return error_of_reply(
                key,
                operation,
                status=status,
                code=code,
                message=message,
                has_body=has_body(error.response),
            )
        kind = type(error).__name__
        text = self._told(str(error))
        if isinstance(error, TimeoutError) and not text:
            text = f"no whole reply in {self._settings.whole_request_ms} ms"
        reason = one_line(f"{kind}: {text}")
        if kind in _REFUSED or isinstance(error, TypeError | AttributeError):
            return BackendRefusedError(key, operation, reason)
        unanswered = (
            None if isinstance(error, TimeoutError) else error_of_exception(key, operation, error)
        )
        return unanswered or BackendUnavailableError(key, operation, reason)

    def _told(self, message: str) -> str:
        return "(the message quotes a secret)" if self._settings.leaks_into(message) else message

    def _connect(self) -> Any:
        try:
            s3fs = importlib.import_module("s3fs")
        except ImportError as error:
            raise InvalidConfigError("S3 needs s3fs: pip install 'tieredstore[s3]'") from error
        keep_clients_quiet()
        settings = self._settings
        filesystem = s3fs.S3FileSystem(
            key=str(settings.access_key) or None,
            secret=str(settings.secret_key) or None,
            token=str(settings.session_token) or None,
            endpoint_url=settings.endpoint or None,
            client_kwargs={"region_name": settings.region} if settings.region else {},
            config_kwargs=_config(settings),
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        with self.translated(settings.bucket, "connect"):
            filesystem.connect()
        filesystem.s3.meta.events.register_last("before-call.s3", _send_at_once)
        end_redirects(filesystem.s3)
        return filesystem


def _send_at_once(params: Mapping[str, Any], **_: Any) -> None:
    """Send the body without waiting for "100 Continue", which takes a round trip and for which
    aiohttp waits without any limit."""
    params["headers"].pop("Expect", None)


def told(reply: Mapping[str, Any], name: str, key: str, operation: str) -> Any:
    """A field that every store's reply has.

    A reply without it is not from the store: a proxy may answer any request with a page and 200.
    """
    value = reply.get(name)
    if value is None:
        raise BackendUnavailableError(key, operation, f"the reply says no {name}: it is no store's")
    return value


# Operations whose reply has no field that a store must give.
_SILENT: Final = ("abort_multipart_upload", "delete_object", "delete_objects")

# Operations whose reply has no body, though some stores call it one of HTML.
_PUTS: Final = ("put_object", "upload_part")


def has_body(reply: Mapping[str, Any]) -> bool:
    headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return bool(headers.get("content-length") != "0")


def refuse_page(reply: Mapping[str, Any], key: str, operation: str) -> None:
    """Raise for a page of a proxy, which would otherwise count as done, or as an object."""
    told_of = reply.get("ResponseMetadata", {})
    kind = str(told_of.get("HTTPHeaders", {}).get("content-type", ""))
    if told_of.get("HTTPStatusCode") != 204 and "html" in kind.lower():  # a 204 has no page
        raise page_instead(key, operation)


async def _listed(work: Coroutine[Any, Any, T]) -> list[T]:
    """The result in a list, since `sync` raises a result that is an exception."""
    return [await work]


def _config(settings: ObjectStoreSettings) -> dict[str, Any]:
    # AWS's own "auto" puts names that cannot be host names into the path.
    style = "path" if settings.path_addressing else settings.addressing
    return {
        "connect_timeout": settings.connect_timeout_ms / 1000,
        "read_timeout": settings.request_timeout_ms / 1000,
        "max_pool_connections": settings.connections_max,
        # Only our own layer retries.
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": style},
        # Chunked bodies with trailing checksums, the default since 2025, break many other stores.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


def _release(filesystem: Any) -> None:
    filesystem.close_session(filesystem.loop, filesystem.s3)


PARTS_MAX: Final = 10_000
EMPTY_PAGES_MAX: Final = 1_000  # in a row, of a listing that says there are more
_AT_ONCE_BYTES: Final = 512 * 1024

_DIGESTS: Final[Mapping[str, Callable[[Buffer], bytes]]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: int(google_crc32c.value(bytes(data))).to_bytes(4, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
_DIGEST_FIELDS: Final = {
    "crc32": "ChecksumCRC32",
    "crc32c": "ChecksumCRC32C",
    "sha256": "ChecksumSHA256",
}
# Checksums that a reply may have for a part, and that completing the upload has to repeat.
_PART_CHECKSUMS: Final = (*_DIGEST_FIELDS.values(), "ChecksumCRC64NVME")


class S3Puts:
    """The writing half of `S3fsClient`."""

    def __init__(self, settings: ObjectStoreSettings, connection: S3fsConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._object = _object_options(settings)

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str],
        if_absent: bool,
    ) -> ObjectFacts:
        asked = {
            **self._at(key),
            **self._object,
            **self._checksum(data),
            "Body": _body(data),
            "Metadata": dict(metadata),
        }
        if if_absent:
            asked["IfNoneMatch"] = "*"
        reply = self._connection.call("put_object", key, **asked)
        return ObjectFacts(
            key=key,
            size=memoryview(data).nbytes,
            etag=told(reply, "ETag", key, "put_object"),
            metadata=dict(metadata),
        )

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str],
        if_absent: bool,
        attempt: Attempt,
        head: Head,
    ) -> ObjectFacts | None:
        """Sends part after part. Only one part and one block are in memory."""
        self._connection.check_open()
        parts = gathered(blocks, UPLOAD_PART_BYTES)
        first = next(parts, None)
        if first is None:
            return None
        if len(first) < UPLOAD_PART_BYTES:  # it is the only part
            whole = first

            def put() -> ObjectFacts:
                return self.put(key, whole, metadata=metadata, if_absent=if_absent)

            return attempt(settling(put, head, key, len(whole), metadata))
        upload_id = attempt(lambda: self._start(key, metadata))
        parts = itertools.chain([first], parts)
        first = None  # so that only one part at a time is in memory
        try:
            size, sent = self._send(key, upload_id, parts, attempt)

            def finish() -> ObjectFacts:
                return self._finish(key, upload_id, sent, size, metadata, if_absent)

            return attempt(settling(finish, head, key, size, metadata))
        except BaseException:
            self._give_up(key, upload_id)
            raise

    def abort(self, key: str, upload_id: str) -> None:
        try:
            self._connection.call(
                "abort_multipart_upload", key, **self._at(key), UploadId=upload_id
            )
        except (BackendRefusedError, SegmentNotFoundError) as error:
            if "NoSuchUpload" not in str(error) and not isinstance(error, SegmentNotFoundError):
                raise

    def _start(self, key: str, metadata: Mapping[str, str]) -> str:
        asked = {**self._at(key), **self._object, "Metadata": dict(metadata)}
        if self._settings.checksum:
            asked["ChecksumAlgorithm"] = self._settings.checksum.upper()
        reply = self._connection.call("create_multipart_upload", key, **asked)
        upload_id: str = told(reply, "UploadId", key, "create_multipart_upload")
        return upload_id

    def _send(
        self,
        key: str,
        upload_id: str,
        parts: Iterator[bytearray],
        attempt: Attempt,
    ) -> tuple[int, list[dict[str, Any]]]:
        sent: list[dict[str, Any]] = []
        size = 0
        while (part := next(parts, None)) is not None:
            if len(sent) == PARTS_MAX:
                raise BackendRefusedError(key, "upload_part", f"more than {PARTS_MAX} parts")
            sent.append(self._send_part(key, upload_id, len(sent) + 1, part, attempt))
            size += len(part)
            del part  # before the next one is gathered
        return size, sent

    def _send_part(
        self, key: str, upload_id: str, number: int, part: bytearray, attempt: Attempt
    ) -> dict[str, Any]:
        checksum = self._checksum(part)
        asked = {**self._at(key), **checksum, "UploadId": upload_id, "PartNumber": number}

        def send() -> Mapping[str, Any]:
            reply = self._connection.call("upload_part", key, **asked, Body=_body(part))
            told(reply, "ETag", key, "upload_part")
            return reply

        reply = attempt(send)
        stored = {name: reply[name] for name in _PART_CHECKSUMS if name in reply}
        checksum.pop("ChecksumAlgorithm", None)
        return {"PartNumber": number, "ETag": reply["ETag"], **checksum, **stored}

    def _finish(
        self,
        key: str,
        upload_id: str,
        sent: list[dict[str, Any]],
        size: int,
        metadata: Mapping[str, str],
        if_absent: bool,
    ) -> ObjectFacts:
        asked = {**self._at(key), "UploadId": upload_id, "MultipartUpload": {"Parts": sent}}
        if if_absent:
            asked["IfNoneMatch"] = "*"
        reply = self._connection.call("complete_multipart_upload", key, **asked)
        etag = told(reply, "ETag", key, "complete_multipart_upload")
        return ObjectFacts(key=key, size=size, etag=etag, metadata=dict(metadata))

    def _give_up(self, key: str, upload_id: str) -> None:
        try:
            self.abort(key, upload_id)
        except TieredStoreError as error:
            log.warning("an upload of %s is left behind for the audit: %s", key, error)

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._settings.bucket, "Key": self._settings.prefix + key}

    def _checksum(self, data: Buffer) -> dict[str, Any]:
        """A plain header if we can compute the checksum; otherwise botocore does it."""
        name = self._settings.checksum
        if not name:
            return {}
        digest = _DIGESTS.get(name)
        if digest is None:
            return {"ChecksumAlgorithm": name.upper()}
        return {_DIGEST_FIELDS[name]: base64.b64encode(digest(data)).decode()}


def gathered(blocks: Iterable[Buffer], size: int) -> Iterator[bytearray]:
    """The stream cut into parts of exactly `size` bytes; the last one has the rest."""
    part = bytearray()
    for block in blocks:
        view = memoryview(block).cast("B")
        while len(view):
            taken = view[: size - len(part)]
            part += taken
            view = view[len(taken) :]
            if len(part) == size:
                whole, part = part, bytearray()
                yield whole
                del whole
    if part:
        yield part


def _object_options(settings: ObjectStoreSettings) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if settings.storage_class:
        options["StorageClass"] = settings.storage_class
    if settings.encryption:
        options["ServerSideEncryption"] = settings.encryption
    if settings.encryption_key:
        options["SSEKMSKeyId"] = settings.encryption_key
    return options


def _body(data: Buffer) -> bytes | io.BytesIO:
    """The body for one request: a new one each time, since sending consumes it."""
    whole = data if isinstance(data, bytes) else bytes(data)
    # aiohttp warns of large bodies that are sent in one go, as they block the event loop.
    return io.BytesIO(whole) if len(whole) > _AT_ONCE_BYTES else whole


class S3fsClient(ObjectClient):
    """One bucket and prefix of an S3-like store.

    Each call is one request, except for streams, long listings and more than 1 000 deletes. Does
    not retry.
    """

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._prefix = settings.prefix
        self._at = {"Bucket": settings.bucket}
        self._connection = S3fsConnection(settings)
        self._puts = S3Puts(settings, self._connection)

    @property
    def capabilities(self) -> ObjectCapabilities:
        exact = self._settings.conditional_put
        return ObjectCapabilities(create_only=exact)

    def describe(self) -> str:
        return f"s3fs, {self._settings.place()}"

    def head(self, key: str) -> ObjectFacts:
        with explained(lambda: self.get_range(key, 0, 1)):
            reply = self._connection.call("head_object", key, **self._at, Key=self._prefix + key)
        refuse_page(reply, key, "head_object")
        metadata = {name.lower(): value for name, value in reply.get("Metadata", {}).items()}
        size, etag = (told(reply, name, key, "head_object") for name in ("ContentLength", "ETag"))
        return ObjectFacts(key=key, size=size, etag=etag, metadata=metadata)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_object_range(key, start, length)
        if not length:
            self._connection.check_open()
            return b""
        return self._connection.run(self._got(key, start, length))

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        return self._connection.run_many(
            [self._got_or_error(each.key, each.start, each.length) for each in ranges]
        )

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        exact = self._settings.conditional_put
        if if_absent and not exact:
            refuse_existing_object(self.head, key)
        return self._puts.put(
            key,
            data,
            metadata=metadata or {},
            if_absent=if_absent and exact,
        )

    def put_stream(
        self,
        key: str,
        blocks: Iterable[Buffer],
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
        attempt: Attempt = once,
    ) -> ObjectFacts | None:
        exact = self._settings.conditional_put
        if if_absent and not exact:
            attempt(lambda: refuse_existing_object(self.head, key))
        return self._puts.put_stream(
            key,
            blocks,
            metadata=metadata or {},
            if_absent=if_absent and exact,
            attempt=attempt,
            head=self.head,
        )

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        asked = {**self._at, "Prefix": self._prefix + prefix, "MaxKeys": KEYS_PER_REQUEST}
        if after:
            asked["StartAfter"] = self._prefix + after
        operation = "list_objects_v2"
        empty = 0
        while True:
            page = self._connection.call(operation, prefix, **asked)
            if "IsTruncated" not in page:  # maybe not a listing at all: then it has no Name either
                told(page, "Name", prefix, operation)
            empty += 1
            for entry in page.get("Contents", ()):
                size = told(entry, "Size", prefix, operation)
                refuse_foreign(entry["Key"], self._prefix + prefix, operation)
                key = entry["Key"].removeprefix(self._prefix)
                if key > after:  # some stores ignore where to begin
                    empty = 0
                    yield ListedKey(key, size)
            if not page.get("IsTruncated"):
                return
            following = told(page, "NextContinuationToken", prefix, operation)
            if following == asked.get("ContinuationToken") or empty == EMPTY_PAGES_MAX:
                raise BackendUnavailableError(prefix, operation, "its pages do not end")
            asked["ContinuationToken"] = following

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        self._connection.check_open()
        errors: dict[str, TieredStoreError] = {}
        keys = list(dict.fromkeys(keys))  # MinIO answers a key's second time without its name
        for first in range(0, len(keys), KEYS_PER_REQUEST):
            batch = keys[first : first + KEYS_PER_REQUEST]
            try:
                errors |= self._delete_batch(batch)
            except BackendRefusedError as error:
                if not no_batch_delete(error):
                    errors |= dict.fromkeys(batch, error)
                    continue
                errors |= self._delete_singly(batch)
            except TieredStoreError as error:
                errors |= dict.fromkeys(batch, error)
        return errors

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        found: list[AbandonedUpload] = []
        asked: dict[str, Any] = {**self._at, "Prefix": self._prefix + prefix}
        empty = 0
        while True:
            try:
                page = self._connection.call("list_multipart_uploads", prefix, **asked)
            except BackendRefusedError as error:
                if "NoSuchUpload" not in str(error):
                    raise
                return found  # some stores say so if there are none
            found += [
                AbandonedUpload(entry["Key"][len(self._prefix) :], entry["UploadId"])
                for entry in page.get("Uploads", ())
                if entry["Key"].startswith(self._prefix + prefix)
            ]
            if not page.get("IsTruncated"):
                return found
            following = {
                name: told(page, f"Next{name}", prefix, "list_multipart_uploads")
                for name in ("KeyMarker", "UploadIdMarker")
            }
            empty = 0 if page.get("Uploads") else empty + 1
            if asked.items() >= following.items() or empty == EMPTY_PAGES_MAX:
                reason = "its pages do not end"
                raise BackendUnavailableError(prefix, "list_multipart_uploads", reason)
            asked |= following

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._puts.abort(upload.key, upload.upload_id)

    def close(self) -> None:
        self._connection.close()

    async def _got(self, key: str, start: int, length: int) -> bytes:
        async with self._connection.request(key, "get_object"):
            reply = await self._connection.client().get_object(
                **self._at, Key=self._prefix + key, Range=f"bytes={start}-{start + length - 1}"
            )
            async with reply["Body"] as body:
                refuse_another_range(key, start, length, reply.get("ContentRange", ""))
                data: bytes = await body.read()
        if len(data) != length:
            raise OtherBytesError(key, "get_object", f"{len(data)} bytes came instead of {length}")
        return data

    async def _got_or_error(self, key: str, start: int, length: int) -> bytes | TieredStoreError:
        try:
            check_object_range(key, start, length)
            return await self._got(key, start, length) if length else b""
        except TieredStoreError as error:
            return error

    def _delete_batch(self, batch: Sequence[str]) -> dict[str, TieredStoreError]:
        named = [{"Key": self._prefix + key} for key in batch]
        reply = self._connection.call(
            "delete_objects", batch[0], **self._at, Delete={"Objects": named, "Quiet": True}
        )
        errors: dict[str, TieredStoreError] = {}
        for entry in reply.get("Errors", ()):
            if entry.get("Code") == "NoSuchKey":  # whichever it is, it is gone
                continue
            name = told(entry, "Key", batch[0], "delete_objects")
            key = name.removeprefix(self._prefix)
            if self._prefix + key != name or key not in batch:  # which one has failed is unknown
                reason = one_line(f"the reply is about {name}, which was not to be deleted")
                raise BackendUnavailableError(batch[0], "delete_objects", reason)
            errors[key] = self._connection.delete_error(key, entry)
        return errors

    def _delete_singly(self, batch: Sequence[str]) -> dict[str, TieredStoreError]:
        errors: dict[str, TieredStoreError] = {}
        for key in batch:
            try:
                self._connection.call("delete_object", key, **self._at, Key=self._prefix + key)
            except SegmentNotFoundError:
                continue
            except TieredStoreError as error:
                errors[key] = error
        return errors


def refuse_foreign(name: str, wanted: str, operation: str) -> None:
    """Raise unless a listed key begins as asked. A store may ignore that, or encode its keys."""
    if not name.startswith(wanted):
        reason = one_line(f"{name} is listed, which does not begin with {wanted}")
        raise BackendUnavailableError(wanted, operation, reason)


def refuse_another_range(key: str, start: int, length: int, served: str) -> None:
    """Raise unless the reply has exactly these bytes: OffsetOutOfRangeError if it says that the
    object ends before, otherwise OtherBytesError.

    A server may ignore ranges, and a proxy may answer with what it has.
    """
    span, _, total = served.partition("/")
    if span == f"bytes {start}-{start + length - 1}":
        return
    if total.isdigit() and int(total) < start + length:
        raise beyond_end(key, start, length, int(total))
    reason = f"{served or 'no range'} came instead of bytes {start}-{start + length - 1}"
    raise OtherBytesError(key, "get_object", reason)
