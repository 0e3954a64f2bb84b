"""S3 through obstore's native API: a request takes a tenth of the processor time of s3fs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tieredstore.driver.object_client import (
    KEYS_PER_REQUEST,
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
from tieredstore.driver.object_requests import refuse_existing_object, settling
from tieredstore.driver.runtime import SystemClock
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.providers.s3_errors import (
    Cause,
    certificate_refused,
    error_of_connection,
    error_of_key,
    error_of_reply,
    explained,
    no_batch_delete,
    one_line,
    page_instead,
)
from tieredstore.providers.s3_settings import ObjectStoreSettings, PerProcess, keep_clients_quiet
from tieredstore.providers.s3fs import gathered, refuse_foreign, told

_STATUS: Final = re.compile(r"status code: (\d{3})")
_NOT_FOUND_BODY: Final = re.compile(r"status code: 404 [\w ]*: (?!\s*Debug source)\s*\S")
_BARE_REDIRECT: Final = "redirect without LOCATION"  # as S3 sends to another region
_OTHER_RANGE: Final = re.compile(r"source: (?:NotPartial|NoContentRange|UnexpectedRange)\b")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")
# Texts that say why no reply came, in an error's text with all its causes. The first match counts.
_CAUSES: Final = (
    ("dns error", Cause.NO_NAME),
    ("kind: ConnectionRefused", Cause.REFUSED),
    ("InvalidContentType", Cause.NO_TLS),
    ("TimedOut", Cause.SILENT),
    ("deadline has elapsed", Cause.SILENT),
    ("ConnectionReset", Cause.BROKEN),
    ("BrokenPipe", Cause.BROKEN),
    ("IncompleteMessage", Cause.BROKEN),
    ("Canceled", Cause.BROKEN),  # closed before the request was sent
)
# The code of a key's failure in a batch delete.
_DELETE_CODE: Final = re.compile(r"\(code: (\w+)\)")
_CHECKSUMS: Final = ("", "sha256", "crc64nvme")
# botocore is asked again after this time; it renews credentials that would expire within it.
_CREDENTIALS_LAST_S: Final = 600

# The process in which obstore started its threads, on its first call. 0: none yet.
_started_in = 0


def started_elsewhere() -> bool:
    """Whether this process was forked from one that used obstore, so that calls would hang."""
    return _started_in not in (0, os.getpid())


def obstore_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def obstore_can(settings: ObjectStoreSettings) -> bool:
    """Whether obstore has every option that these settings need."""
    return settings.checksum in _CHECKSUMS


def make_store(settings: ObjectStoreSettings) -> Any:
    global _started_in
    try:
        store_module = importlib.import_module("obstore.store")
    except ImportError as error:
        raise InvalidConfigError("obstore is missing: pip install 'tieredstore[fast]'") from error
    _started_in = _started_in or os.getpid()
    try:
        return store_module.S3Store(
            settings.bucket,
            config=_config(settings),
            client_options={
                "allow_http": settings.endpoint.startswith("http://"),
                "connect_timeout": timedelta(milliseconds=settings.connect_timeout_ms),
                "read_timeout": timedelta(milliseconds=settings.request_timeout_ms),
                # obstore's own limit for a whole request, 30 s, would cut off large bodies.
                "timeout": timedelta(milliseconds=settings.whole_request_ms),
                "pool_max_idle_per_host": str(settings.connections_max),
            },
            # Only our own layer retries.
            retry_config={"max_retries": 0},
            **_credentials(settings),
        )
    except Exception as error:
        if settings.leaks_into(str(error)):
            raise InvalidConfigError("obstore refuses these settings") from None
        raise InvalidConfigError(f"obstore: {_first_line(error)}") from error


class ObstoreConnection:
    """Connects on the first call in each process. Does not retry."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._live: PerProcess[Any] = PerProcess(
            lambda: make_store(settings), lambda _: None, settings.place()
        )
        # obstore itself limits only idle connections.
        self._free = threading.BoundedSemaphore(settings.connections_max)

    def check_open(self) -> None:
        self._live.check_open()

    def close(self) -> None:
        self._live.close()

    def pages(self, prefix: str, folder: str, behind: str) -> Iterator[tuple[str, int]]:
        if started_elsewhere():
            raise UnparsedKeyError
        with self.translated(prefix, "list") as (obstore, store):
            pages = obstore.list(
                store, folder or None, offset=behind or None, chunk_size=KEYS_PER_REQUEST
            )
        while (page := self._page(prefix, pages)) is not None:
            for entry in page:
                yield entry["path"], entry["size"]

    def _page(self, prefix: str, pages: Any) -> Any:
        """The next keys, None after the last. obstore itself asks for page after page until it has
        some, so a store whose pages have none needs a limit."""
        from fsspec.asyn import get_loop, sync

        limit_ms = self._settings.whole_request_ms

        async def page() -> Any:
            with self.translated(prefix, "list", has_connection=True):
                return await anext(pages, None)

        with self.connections(1):
            try:
                return sync(get_loop(), page, timeout=limit_ms / 1000)
            except TimeoutError as error:
                reason = f"no whole page of keys in {limit_ms} ms"
                raise BackendUnavailableError(prefix, "list", reason) from error

    def delete(self, batch: Sequence[str]) -> None:
        with self.translated(batch[0], "delete") as (obstore, store):
            obstore.delete(store, [self._settings.prefix + key for key in batch])

    @contextmanager
    def connections(self, wanted: int) -> Iterator[int]:
        """How many connections may be used, at most `wanted`; waits while all are in use."""
        taken = 0
        try:
            while taken < wanted and self._free.acquire(blocking=not taken):
                taken += 1
            yield taken
        finally:
            if taken:
                self._free.release(taken)

    @contextmanager
    def translated(
        self, key: str, operation: str, *, has_connection: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """The only place where obstore's errors become ours."""
        import obstore

        store = self._live.get()
        try:
            with self.connections(0 if has_connection else 1):
                yield obstore, store
        except TieredStoreError:
            raise
        except BaseException as error:
            # An unexpected reply makes obstore panic, and PanicException is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            unparsed = type(error).__name__ == "InvalidPathError" or "parse path" in str(error)
            if unparsed and operation == "list":
                raise UnparsedKeyError from error
            ours = error_of(key, operation, error, self._settings)
            raise ours from (None if self._settings.leaks_into(str(error)) else error)


def error_of(
    key: str, operation: str, error: BaseException, settings: ObjectStoreSettings
) -> TieredStoreError:
    """Our error for one of obstore's: by the status in its text, otherwise by its type."""
    text = str(error)
    kind = type(error).__name__
    status, code = _reply_of(kind, text)
    if status == "416":
        size = _found(re.compile(r"<ActualObjectSize>(\d+)<"), text)
        end = int(size or 0)
        return OffsetOutOfRangeError(f"a range of {key}", offset=end + 1, minimum=0, maximum=end)
    message = _found(_MESSAGE, text)
    if settings.leaks_into(message):
        message = "(the message quotes a secret)"
    if status:
        return error_of_reply(
            key,
            operation,
            status=int(status),
            code=code,
            message=message,
            has_body=bool(_NOT_FOUND_BODY.search(text)),
        )
    if code:  # for one key of a batch, which has no status of its own
        if code == "NoSuchKey":
            return SegmentNotFoundError(key)
        return error_of_key(key, operation, code)
    certificate = _found(_CERTIFICATE, text)
    if certificate:
        return certificate_refused(key, operation, certificate)
    if isinstance(error, FileNotFoundError):
        return error_of_reply(key, operation, status=404, code="")
    reason = "(the message quotes a secret)" if settings.leaks_into(text) else _first_line(error)
    if kind in _REFUSED or isinstance(error, ValueError | TypeError):
        return BackendRefusedError(key, operation, reason)
    if _OTHER_RANGE.search(text):
        return OtherBytesError(key, operation, reason)
    for said, cause in _CAUSES:
        if said in text:
            return error_of_connection(key, operation, cause, text)
    return BackendUnavailableError(key, operation, reason)


def _reply_of(kind: str, text: str) -> tuple[str, str]:
    """The status and the code of the reply, as far as an error of obstore tells them."""
    if _BARE_REDIRECT in text:  # it tells neither
        return "301", "PermanentRedirect"
    status, code = _found(_STATUS, text), _found(_CODE, text) or _found(_DELETE_CODE, text)
    if kind in ("AlreadyExistsError", "PreconditionError") and status not in ("409", "416"):
        return "412", "PreconditionFailed" if code != "NoSuchBucket" else code
    return status, code


_REFUSED: Final = (
    "InvalidPathError",
    "NotSupportedError",
    "PermissionDeniedError",
    "UnauthenticatedError",
    "UnknownConfigurationKeyError",
)


def _config(settings: ObjectStoreSettings) -> dict[str, Any]:
    config: dict[str, Any] = {
        "virtual_hosted_style_request": not settings.path_addressing,
        "conditional_put": "etag" if settings.conditional_put else "disabled",
    }
    endpoint = settings.endpoint
    if endpoint and not settings.path_addressing:  # obstore wants the bucket in the host name
        scheme, _, host = endpoint.partition("://")
        endpoint = f"{scheme}://{settings.bucket}.{host}"
    optional = {
        "endpoint": endpoint,
        "region": settings.region,
        "server_side_encryption": settings.encryption,
        "sse_kms_key_id": settings.encryption_key,
        "checksum_algorithm": settings.checksum.upper(),
    }
    return config | {name: value for name, value in optional.items() if value}


def _credentials(settings: ObjectStoreSettings) -> dict[str, Any]:
    """The configured credentials, otherwise the usual chain: botocore's if it is installed, or else
    obstore's shorter one."""
    if settings.access_key:
        given = {
            "access_key_id": str(settings.access_key),
            "secret_access_key": str(settings.secret_key),
        }
        if settings.session_token:
            given["session_token"] = str(settings.session_token)
        return given
    if importlib.util.find_spec("botocore") is None:
        return {}  # obstore looks at environment, web identity, container and machine
    keep_clients_quiet()
    sessions: Any = importlib.import_module("botocore.session")
    session = sessions.get_session()
    found = session.get_credentials()
    if found is None:
        return {}

    def asked() -> dict[str, Any]:
        keep_clients_quiet()
        frozen = found.get_frozen_credentials()
        until = SystemClock().now_ms() / 1000 + _CREDENTIALS_LAST_S
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.fromtimestamp(until, UTC),
        }

    region = settings.region or session.get_config_variable("region")
    asked.config = {"region": region} if region else {}  # type: ignore[attr-defined]
    return {"credential_provider": asked}


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def _first_line(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


class UnparsedKeyError(Exception):
    """A listing has a key that obstore cannot parse, such as one with two slashes."""


class ShortReply:
    """A reply with too few bytes; why is not known yet."""

    def __init__(self, got: int) -> None:
        self.got = got


def just_before(wanted: str) -> str:
    """A text that sorts just before everything that begins with `wanted`."""
    if not wanted or wanted.endswith("/"):
        return ""  # the folder itself suffices
    last = ord(wanted[-1]) - 1
    if last == ord("/"):  # it could make an empty part of a path, which obstore cannot parse
        last -= 1
    if last < ord(" ") or 0xD800 <= last <= 0xDFFF:
        return wanted[:-1].rstrip("/")
    return wanted[:-1] + chr(last) + "\U0010ffff"


WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
_TURN: Final = 4  # ranges per connection, before other callers get a chance at it


class ObstoreClient(ObjectClient):
    """One bucket and prefix of an S3-like store.

    * obstore's threads do not survive a fork, and its calls then hang. In a process that was forked
      from one that used obstore, the second client does everything.
    * obstore cannot complete an upload conditionally, so the second client sends streams. Without a
      second client, a stream of up to 64 MiB is one request, and a longer one is refused.
    """

    def __init__(self, settings: ObjectStoreSettings, second: ObjectClient | None) -> None:
        self._settings = settings
        self._prefix = settings.prefix
        self._second = second
        self._live = ObstoreConnection(settings)

    @property
    def capabilities(self) -> ObjectCapabilities:
        exact = self._settings.conditional_put
        alone = self._second is None
        return ObjectCapabilities(create_only=exact, paged_uploads=not alone, empty_page_once=alone)

    def describe(self) -> str:
        return f"obstore, {self._settings.place()}"

    def head(self, key: str) -> ObjectFacts:
        if started_elsewhere():
            return self._instead("head").head(key)
        with (
            explained(lambda: self.get_range(key, 0, 1)),
            self._live.translated(key, "head") as (obstore, store),
        ):
            found = obstore.get(store, self._prefix + key, options={"head": True})
            if "html" in found.attributes.get("Content-Type", "").lower():
                raise page_instead(key, "head")
            metadata = {
                name: value
                for name, value in found.attributes.items()
                if not name[0].isupper()  # S3's own attributes are spelled like headers
            }
            return ObjectFacts(
                key=key,
                size=found.meta["size"],
                etag=told(found.meta, "e_tag", key, "head"),
                metadata=metadata,
            )

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_object_range(key, start, length)
        if started_elsewhere():
            return self._instead("get").get_range(key, start, length)
        if not length:
            self._live.check_open()
            return b""
        with self._live.translated(key, "get") as (obstore, store):
            data = obstore.get_range(store, self._prefix + key, start=start, length=length)
        return self._whole(key, start, length, data)

    def get_ranges(self, ranges: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        if started_elsewhere():
            return self._instead("get").get_ranges(ranges)
        if len(ranges) < 2:
            return super().get_ranges(ranges)
        from fsspec.asyn import _run_coros_in_chunks, get_loop, sync

        self._live.check_open()
        found: list[bytes | TieredStoreError | ShortReply] = []
        while len(found) < len(ranges):
            with self._live.connections(len(ranges) - len(found)) as count:
                turn = ranges[len(found) : len(found) + count * _TURN]
                found += sync(
                    get_loop(),
                    _run_coros_in_chunks,
                    [self._got(each) for each in turn],
                    batch_size=count,
                    nofiles=True,
                )
        return [
            self._settled_short(each, data) if isinstance(data, ShortReply) else data
            for each, data in zip(ranges, found, strict=True)
        ]

    def put(
        self,
        key: str,
        data: Buffer,
        *,
        metadata: Mapping[str, str] | None = None,
        if_absent: bool = True,
    ) -> ObjectFacts:
        if started_elsewhere():
            return self._instead("put").put(key, data, metadata=metadata, if_absent=if_absent)
        exact = self._settings.conditional_put
        if if_absent and not exact:
            refuse_existing_object(self.head, key)
        attributes = dict(metadata or {})
        if self._settings.storage_class:
            attributes["Storage-Class"] = self._settings.storage_class
        with self._live.translated(key, "put") as (obstore, store):
            reply = obstore.put(
                store,
                self._prefix + key,
                data,
                attributes=attributes,
                mode="create" if if_absent and exact else "overwrite",
                use_multipart=False,
            )
        return ObjectFacts(
            key=key,
            size=memoryview(data).nbytes,
            etag=reply["e_tag"] or "",
            metadata=dict(metadata or {}),
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
        self._live.check_open()
        if self._second is not None:
            return self._second.put_stream(
                key, blocks, metadata=metadata, if_absent=if_absent, attempt=attempt
            )
        parts = gathered(blocks, WHOLE_BYTES_MAX)
        whole = next(parts, None)
        if whole is None:
            return None
        if len(whole) == WHOLE_BYTES_MAX and next(parts, None) is not None:
            raise BackendRefusedError(
                key,
                "put",
                f"more than {WHOLE_BYTES_MAX} bytes in a stream need s3fs beside obstore:"
                " pip install 'tieredstore[s3]'",
            )

        def put() -> ObjectFacts:
            return self.put(key, whole, metadata=metadata, if_absent=if_absent)

        return attempt(settling(put, self.head, key, len(whole), metadata))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ListedKey]:
        """obstore's prefixes are folders, so this lists a folder from just before the prefix, and
        stops after it.

        obstore takes any reply in XML or HTML for a listing, and one without keys for the last
        page. So if full pages end without a key beyond, the second client asks again.
        """
        wanted = self._prefix + prefix
        folder = wanted.rpartition("/")[0]
        behind = max(just_before(wanted), self._prefix + after if after else "")
        last = after
        count = 0
        try:
            for path, size in self._live.pages(prefix, folder, behind):
                count += 1
                refuse_foreign(f"{path}/", f"{folder}/" if folder else "", "list")
                if path > wanted and not path.startswith(wanted):
                    return
                if path < wanted or path <= behind:
                    continue
                last = path[len(self._prefix) :]
                yield ListedKey(last, size)
        except UnparsedKeyError:
            yield from self._instead("list").list(prefix, after=last)
        else:
            if not count % KEYS_PER_REQUEST and self._second is not None:
                yield from self._second.list(prefix, after=last)

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        if started_elsewhere():
            return self._instead("delete").delete_many(keys)
        self._live.check_open()
        errors: dict[str, TieredStoreError] = {}
        keys = list(dict.fromkeys(keys))  # MinIO answers a key's second time without its name
        for first in range(0, len(keys), KEYS_PER_REQUEST):
            batch = keys[first : first + KEYS_PER_REQUEST]
            try:
                self._live.delete(batch)
            except (BackendRefusedError, SegmentNotFoundError) as error:
                if self._second is not None and no_batch_delete(error):  # obstore only has batches
                    errors |= self._second.delete_many(batch)
                    continue
                # The error names only one failed key, and does not say which others are deleted.
                errors |= self._deleted_singly(batch)
            except TieredStoreError as error:
                errors |= dict.fromkeys(batch, error)
        return errors

    def abandoned_uploads(self, prefix: str = "") -> Sequence[AbandonedUpload]:
        self._live.check_open()
        return self._instead("list uploads").abandoned_uploads(prefix)

    def abort_upload(self, upload: AbandonedUpload) -> None:
        self._live.check_open()
        self._instead("abort an upload").abort_upload(upload)

    def close(self) -> None:
        self._live.close()
        if self._second is not None:
            self._second.close()

    async def _got(self, each: Range) -> bytes | TieredStoreError | ShortReply:
        try:
            check_object_range(each.key, each.start, each.length)
            if not each.length:
                return b""
            with self._live.translated(each.key, "get", has_connection=True) as (obstore, store):
                data = await obstore.get_range_async(
                    store, self._prefix + each.key, start=each.start, length=each.length
                )
        except TieredStoreError as error:
            return error
        return data.to_bytes() if len(data) == each.length else ShortReply(len(data))

    def _whole(self, key: str, start: int, length: int, data: Any) -> bytes:
        if len(data) == length:
            whole: bytes = data.to_bytes()
            return whole
        raise self._short(key, start, length, len(data))

    def _settled_short(self, each: Range, short: ShortReply) -> TieredStoreError:
        try:
            return self._short(each.key, each.start, each.length, short.got)
        except TieredStoreError as error:
            return error

    def _short(self, key: str, start: int, length: int, got: int) -> TieredStoreError:
        """The error for a reply with too few bytes. The object's size shows whether the range was
        wrong, or the reply."""
        size = self.head(key).size
        if size < start + length:
            return beyond_end(key, start, length, size)
        return OtherBytesError(key, "get", f"{got} bytes came instead of {length}")

    def _deleted_singly(self, batch: Sequence[str]) -> dict[str, TieredStoreError]:
        errors: dict[str, TieredStoreError] = {}
        for key in batch:
            try:
                self._live.delete([key])
            except SegmentNotFoundError:
                continue
            except TieredStoreError as error:
                errors[key] = error
        return errors

    def _instead(self, operation: str) -> ObjectClient:
        self._live.check_open()
        if self._second is None:
            raise BackendRefusedError(
                self._settings.place(),
                operation,
                "obstore alone cannot do this (in a forked process, nothing): install s3fs beside"
                " it, pip install 'tieredstore[s3]', or start processes with spawn",
            )
        return self._second
