"""Settings that all S3 clients share, and connections made once per process."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from tieredstore.driver.object_requests import PriceTable
from tieredstore.model.errors import InvalidConfigError, StoreClosedError
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
_BUCKET: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._:-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NO_ADDRESS: Final = re.compile(r"[^!-~]|[?#\\<>\"{}|^`]")
# Long enough for the largest part over a slow line. A silent store is given up much earlier.
WHOLE_REQUEST_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSettings:
    """One bucket and prefix of one store, checked on construction. No repr shows secrets."""

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
        if not _BUCKET.fullmatch(self.bucket):
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
        object.__setattr__(self, "endpoint", checked_endpoint(self.endpoint))
        for name in ("access_key", "secret_key", "session_token"):
            if _CONTROL.search(getattr(self, name)):  # such as the newline at the end of a file
                raise InvalidConfigError(f"{name}: holds a control character")
            object.__setattr__(self, name, Secret(getattr(self, name)))
        object.__setattr__(self, "prefix", key_prefix(self.prefix))

    @classmethod
    def from_config(cls, config: StoreConfig) -> ObjectStoreSettings:
        if not config.etag_quoting:
            log.warning("etag_quoting has no effect any more: remove it from the settings")
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
        """Whether the bucket is in the path: by default with every endpoint except AWS's own."""
        if self.addressing == "auto":
            return bool(self.endpoint) and "amazonaws.com" not in self.endpoint
        return self.addressing == "path"

    @property
    def whole_request_ms(self) -> int:
        """The longest time for a request and its whole reply, even if bytes keep coming."""
        return max(WHOLE_REQUEST_MS, self.request_timeout_ms)

    def place(self) -> str:
        """The store's address, for logs and errors."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"s3://{self.bucket}/{self.prefix}{at}"

    def leaks_into(self, text: str) -> bool:
        """Whether a text quotes one of the secrets."""
        secrets = (self.access_key, self.secret_key, self.session_token)
        return any(secret and secret in text for secret in secrets)


def keep_clients_quiet() -> None:
    """Keep botocore's loggers silent at DEBUG if that is on for the whole process.

    At DEBUG they log headers and replies, and with them key ids and session tokens. A logger whose
    own level was set keeps it. Call it before each request, as logging may be set up at any time.
    """
    for name in _BOTOCORES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.INFO)


def end_redirects(client: Any) -> None:
    """Keep this client of botocore from asking for a bucket's region without end.

    It asks with a request for the bucket. If that is redirected too, and the reply names no region,
    it would ask once more for each reply.
    """
    client.meta.events.register_first("needs-retry.s3.HeadBucket", _end_redirect)


def _end_redirect(request_dict: Mapping[str, Any], response: Any, **_: Any) -> None:
    if response is None:
        return
    headers = response[1].get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if "x-amz-bucket-region" not in headers:
        request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


def checked_endpoint(endpoint: str) -> str:
    """An address that every client accepts, or an empty one. obstore panics at any other."""
    if not endpoint:
        return ""
    scheme, _, rest = endpoint.partition("://")
    address = f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(address)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # such as a port that is no number
        whole = None
    if not whole or _NO_ADDRESS.search(address):
        raise InvalidConfigError(
            f"endpoint: {endpoint!r} is no address such as https://s3.example.org:9000"
        )
    return address


def key_prefix(prefix: str) -> str:
    """A prefix that ends with a slash, or is empty, so that `tier` never means `tier-2` too."""
    stripped = prefix.strip("/")
    if "//" in stripped or "\0" in stripped or {".", ".."} & set(stripped.split("/")):
        raise InvalidConfigError(f"prefix: {prefix!r} is no prefix of keys")
    return f"{stripped}/" if stripped else ""


T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes one `T` in each process that asks for it.

    What a forked process inherits is kept and never touched: dropping it would run finalizers that
    wait for threads which do not exist there. Each process has its own lock, since the parent's may
    have been held at the time of the fork.
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
        """Release what this process has made. Idempotent."""
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
