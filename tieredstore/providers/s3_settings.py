"""Settings and errors that all S3 clients share, and connections made once per process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.driver.object_requests import PriceTable
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    SegmentNotFoundError,
    StoreClosedError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.model.settings import Secret

if TYPE_CHECKING:
    from tieredstore.model.config import StoreConfig

log = log_of(__name__)

ADDRESSINGS: Final = ("auto", "path", "virtual")
CHECKSUMS: Final = ("", "crc32", "crc32c", "sha256", "crc64nvme")
ENCRYPTIONS: Final = ("", "AES256", "aws:kms")
CLIENTS: Final = ("auto", "s3fs", "obstore")
_BOTOCORES: Final = ("botocore", "aiobotocore")
# Long enough for the largest part over a slow line: what is silent is given up much earlier.
WHOLE_REQUEST_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSettings:
    """One bucket and prefix of one store; checked when built. Secrets show in no repr."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    addressing: str = "auto"
    storage_class: str = ""
    encryption: str = ""
    encryption_key: str = ""
    conditional_put: bool = True
    checksum: str = ""
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 60_000
    connections_max: int = 64
    client: str = "auto"
    prices: PriceTable = field(default_factory=PriceTable)

    def __post_init__(self) -> None:
        if not self.bucket or "/" in self.bucket:
            raise InvalidConfigError(f"bucket: {self.bucket!r} is no bucket's name")
        for name, known in (
            ("addressing", ADDRESSINGS),
            ("checksum", CHECKSUMS),
            ("encryption", ENCRYPTIONS),
            ("client", CLIENTS),
        ):
            if getattr(self, name) not in known:
                listed = ", ".join(repr(each) for each in known)
                raise InvalidConfigError(f"{name}: {getattr(self, name)!r} is none of {listed}")
        if bool(self.access_key) != bool(self.secret_key):
            raise InvalidConfigError("access_key and secret_key go together")
        if self.endpoint and "://" not in self.endpoint:
            # RocketMQ's own examples leave the scheme out
            object.__setattr__(self, "endpoint", f"https://{self.endpoint}")
        if "@" in self.endpoint:
            raise InvalidConfigError("endpoint: holds credentials; give them apart")
        for name in ("access_key", "secret_key", "session_token"):
            object.__setattr__(self, name, Secret(getattr(self, name)))
        object.__setattr__(self, "prefix", key_prefix(self.prefix))

    @classmethod
    def from_config(cls, config: StoreConfig) -> ObjectStoreSettings:
        if not config.etag_quoting:
            log.warning("etag_quoting is read by nobody any more: take it out of the settings")
        return cls(
            bucket=config.bucket,
            prefix=config.prefix,
            endpoint=config.endpoint,
            region=config.region,
            access_key=config.access_key,
            secret_key=config.secret_key,
            session_token=config.session_token,
            addressing=config.addressing,
            storage_class=config.storage_class,
            encryption=config.encryption,
            encryption_key=config.encryption_key,
            conditional_put=config.conditional_put,
            checksum=config.checksum,
            connect_timeout_ms=config.connect_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            connections_max=config.connections_max,
            client=config.object_client,
            prices=PriceTable.parse(config.request_prices),
        )

    @property
    def path_addressing(self) -> bool:
        """Whether the bucket goes into the path: by default with every endpoint but AWS's own."""
        if self.addressing == "auto":
            return bool(self.endpoint) and "amazonaws.com" not in self.endpoint
        return self.addressing == "path"

    @property
    def whole_request_ms(self) -> int:
        """Longest time for a request and its reply, however steadily it comes."""
        return max(WHOLE_REQUEST_MS, self.request_timeout_ms)

    def place(self) -> str:
        """Where it is, for logs and errors."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"

    def leaks_into(self, text: str) -> bool:
        """Whether a text quotes one of the secrets."""
        secrets = (self.access_key, self.secret_key, self.session_token)
        return any(secret and secret in text for secret in secrets)


def keep_clients_quiet() -> None:
    """Have botocore's loggers say nothing at DEBUG, where it is on for all of the process.

    There they log headers and replies, and with them key ids and session tokens. A logger that was
    given a level by its own name keeps it. To be called before each request, as logging may be
    set up at any time.
    """
    for name in _BOTOCORES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.INFO)


def key_prefix(prefix: str) -> str:
    """A prefix that ends with a slash, or none: `tier` never means `tier-2` too."""
    stripped = prefix.strip("/")
    if "//" in stripped or "\0" in stripped or {".", ".."} & set(stripped.split("/")):
        raise InvalidConfigError(f"prefix: {prefix!r} is no prefix of keys")
    return f"{stripped}/" if stripped else ""


_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound", ""})
# Codes under a status of 4xx that another try may mend all the same.
_TRANSIENT: Final = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "EC2ThrottledException",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
# How stores without a batch delete refuse one.
_NO_BATCH_DELETE: Final = ("NotImplemented", "MissingContentMD5", "InvalidRequest", "MalformedXML")
_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
REASON_CHARACTERS: Final = 200


def error_of_reply(
    key: str, operation: str, *, status: int, code: str, message: str = ""
) -> TieredStoreError:
    """Our error for a reply that is none of success.

    A missing bucket is refused and never taken for a missing object. A conflict (409) says that
    another request was under way: worth another try. A range beyond the end is not decided here:
    it needs the object's size.
    """
    if status == 404 and code in _ABSENT:
        return SegmentNotFoundError(key)
    if status == 412 or code == "PreconditionFailed":
        return ObjectExistsError(key)
    if status in (401, 403) and not (code or message):
        message = "keys are missing or wrong, or do not allow it"
    reason = one_line(f"{status} {code} {message}")
    transient = status in _TRANSIENT_STATUS or code in _TRANSIENT
    if transient or (status >= 500 and status not in (501, 505)):
        return BackendUnavailableError(key, operation, reason)
    return BackendRefusedError(key, operation, reason)


def certificate_refused(key: str, operation: str, reason: str) -> BackendRefusedError:
    """What no other try mends: the certificate of the store is of an authority that is unknown."""
    return BackendRefusedError(
        key,
        operation,
        f"the store's certificate is not trusted: {one_line(reason)}; where it has an authority of"
        " its own, name that to the system, or by AWS_CA_BUNDLE (s3fs) and SSL_CERT_FILE (obstore)",
    )


def no_batch_delete(error: BackendRefusedError) -> bool:
    """Whether a store refused a batch delete because it was one."""
    return any(code in str(error) for code in _NO_BATCH_DELETE)


def one_line(text: str) -> str:
    """A foreign text as part of a message: one line, not too long."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 3] + "..."


T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes one `T` in each process that asks for it.

    What was inherited by a fork is kept and never touched: letting go of it would run finalizers
    that wait for threads which are not there. Each process has a lock of its own, since the
    parent's may have been held when the fork happened.
    """

    def __init__(self, make: Callable[[], T], release: Callable[[T], object], name: str) -> None:
        self._make = make
        self._release = release
        self._name = name
        self._made: dict[int, T] = {}
        self._guards: dict[int, threading.Lock] = {}
        self._closed = False

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._name} is closed")

    def get(self) -> T:
        self.check_open()
        pid = os.getpid()
        made = self._made.get(pid)
        return self._first(pid) if made is None else made

    def close(self) -> None:
        """Release what this process has made; idempotent."""
        self._closed = True
        pid = os.getpid()
        with self._guard(pid):
            made = self._made.pop(pid, None)
        if made is not None:
            self._release(made)

    def _first(self, pid: int) -> T:
        with self._guard(pid):
            self.check_open()
            if pid not in self._made:
                self._made[pid] = self._make()
            return self._made[pid]

    def _guard(self, pid: int) -> threading.Lock:
        return self._guards.setdefault(pid, threading.Lock())
