"""Making obstore's store, which process it works in, and what its answers mean.

What lives here: all that is peculiar to obstore. The client itself is in `obstore_client.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from tieredstore.driver.object_client import KEYS_PER_REQUEST
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    TieredStoreError,
)
from tieredstore.providers.object_settings import ObjectStoreSettings, keep_clients_quiet
from tieredstore.providers.per_process import PerProcess
from tieredstore.providers.s3_errors import certificate_refused, error_of_reply, one_line

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
# How a failed batch delete tells of a key.
_DELETE_CODE: Final = re.compile(r"\(code: (\w+)\)")
_CHECKSUMS: Final = ("", "sha256", "crc64nvme")

# obstore has one set of threads for the whole process, from its first call on.
_started_in = 0


def started_elsewhere() -> bool:
    """Whether this process is a fork of one that used obstore: here its calls would hang."""
    return _started_in not in (0, os.getpid())


def obstore_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def obstore_can(settings: ObjectStoreSettings) -> bool:
    """Whether it has every option that is asked for."""
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
                # The overall bound of a request, obstore's 30 s, would cut large bodies off.
                "timeout": timedelta(milliseconds=settings.whole_request_ms),
                "pool_max_idle_per_host": str(settings.connections_max),
            },
            # The only layer that tries again is ours.
            retry_config={"max_retries": 0},
            **_credentials(settings),
        )
    except Exception as error:
        if settings.leaks_into(str(error)):
            raise InvalidConfigError("obstore refuses these settings") from None
        raise InvalidConfigError(f"obstore: {_first_line(error)}") from error


class ObstoreConnection:
    """Made by the first call, in the process that makes it; nothing is tried again."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._live: PerProcess[Any] = PerProcess(
            lambda: make_store(settings), lambda _: None, settings.place()
        )
        # obstore itself bounds only those that are idle.
        self._free = threading.BoundedSemaphore(settings.connections_max)

    def check_open(self) -> None:
        self._live.check_open()

    def close(self) -> None:
        self._live.close()

    def pages(self, prefix: str, folder: str, behind: str) -> Iterator[tuple[str, int]]:
        if started_elsewhere():
            raise UnparsedKeyError
        with self.translated(prefix, "list") as (obstore, store):
            pages = iter(
                obstore.list(
                    store, folder or None, offset=behind or None, chunk_size=KEYS_PER_REQUEST
                )
            )
        while True:
            with self.translated(prefix, "list"):
                page = next(pages, None)
            if page is None:
                return
            for entry in page:
                yield entry["path"], entry["size"]

    def delete(self, batch: Sequence[str]) -> None:
        with self.translated(batch[0], "delete") as (obstore, store):
            obstore.delete(store, [self._settings.prefix + key for key in batch])

    @contextmanager
    def connections(self, wanted: int) -> Iterator[int]:
        """How many may be used, at most so many; waits for one while all are in use."""
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
        """The one place where obstore's errors become ours."""
        import obstore

        store = self._live.get()
        try:
            with self.connections(0 if has_connection else 1):
                yield obstore, store
        except TieredStoreError:
            raise
        except BaseException as error:
            # A reply that it did not expect makes obstore panic, which is no Exception.
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
    """Ours for one of obstore's: by the status in its text, else by its type."""
    text = str(error)
    status, code = _found(_STATUS, text), _found(_CODE, text) or _found(_DELETE_CODE, text)
    if status == "416":
        size = _found(re.compile(r"<ActualObjectSize>(\d+)<"), text)
        end = int(size or 0)
        return OffsetOutOfRangeError(f"a range of {key}", offset=end + 1, minimum=0, maximum=end)
    message = _found(_MESSAGE, text)
    if settings.leaks_into(message):
        message = "(the message quotes a secret)"
    kind = type(error).__name__
    if kind in ("AlreadyExistsError", "PreconditionError") and status != "409":
        status, code = "412", "PreconditionFailed" if code != "NoSuchBucket" else code
    if status:
        return error_of_reply(key, operation, status=int(status), code=code, message=message)
    if code:  # one key of a batch, which has no status of its own
        transient = code in ("InternalError", "ServiceUnavailable", "SlowDown")
        return error_of_reply(key, operation, status=500 if transient else 403, code=code)
    certificate = _found(_CERTIFICATE, text)
    if certificate:
        return certificate_refused(key, operation, certificate)
    if isinstance(error, FileNotFoundError):
        return error_of_reply(key, operation, status=404, code="")
    reason = "(the message quotes a secret)" if settings.leaks_into(text) else _first_line(error)
    if kind in _REFUSED or isinstance(error, ValueError | TypeError):
        return BackendRefusedError(key, operation, reason)
    return BackendUnavailableError(key, operation, reason)


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
    if endpoint and not settings.path_addressing:  # it wants the bucket in the host's name
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
    """Those that were given, else the usual chain: all of it where boto3 is installed."""
    if settings.access_key:
        given = {
            "access_key_id": str(settings.access_key),
            "secret_access_key": str(settings.secret_key),
        }
        if settings.session_token:
            given["session_token"] = str(settings.session_token)
        return given
    if importlib.util.find_spec("boto3") is None:
        return {}  # environment, web identity, container and machine
    keep_clients_quiet()
    boto3: Any = importlib.import_module("boto3")
    session = boto3.session.Session(region_name=settings.region or None)
    if session.get_credentials() is None:
        return {}
    provider: Any = importlib.import_module("obstore.auth.boto3")
    found: Any = provider.Boto3CredentialProvider(session)

    def asked() -> Any:  # again whenever they expire
        keep_clients_quiet()
        return found()

    asked.config = found.config  # type: ignore[attr-defined]
    return {"credential_provider": asked}


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def _first_line(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


class UnparsedKeyError(Exception):
    """A listing has a key in it that obstore takes for none, such as one with two slashes."""


class ShortReply:
    """A reply with too few bytes, not yet explained."""

    def __init__(self, got: int) -> None:
        self.got = got


def just_before(wanted: str) -> str:
    """A text behind which everything that begins with `wanted` sorts, and little else."""
    if not wanted or wanted.endswith("/"):
        return ""  # the folder itself
    last = ord(wanted[-1]) - 1
    if last == ord("/"):  # there would be an empty part of a path, which it does not parse
        last -= 1
    if last < ord(" ") or 0xD800 <= last <= 0xDFFF:
        return wanted[:-1].rstrip("/")
    return wanted[:-1] + chr(last) + "\U0010ffff"
