"""One process's connection to S3 through s3fs, and what its exceptions mean.

What lives here: making the client, running its coroutines on fsspec's loop, translation of errors.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

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

T = TypeVar("T")

_CERTIFICATE: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED\W*")
# Exceptions of botocore that are not about the network but about what was asked or who asks.
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
    """Made by the first call, in the process that makes it; nothing is tried again."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._live: PerProcess[Any] = PerProcess(self._connect, _release, settings.place())

    def client(self) -> Any:
        """The S3 client under the filesystem, of aiobotocore."""
        return self._live.get().s3

    def check_open(self) -> None:
        self._live.check_open()

    def close(self) -> None:
        self._live.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of ours, which translates for itself."""
        return self.run_many([work])[0]

    def run_many(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run them side by side, as many as there are connections; the first error of them."""
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
        """One operation whose reply has no body to read."""
        reply: Mapping[str, Any] = self.run(self.called(operation, key, **asked))
        return reply

    async def called(self, operation: str, key: str, **asked: Any) -> Mapping[str, Any]:
        async with self.request(key, operation):
            reply: Mapping[str, Any] = await getattr(self.client(), operation)(**asked)
        return reply

    @asynccontextmanager
    async def request(self, key: str, operation: str) -> AsyncIterator[None]:
        """One of them, with a limit of ours on the whole of it: one on silence never ends a reply
        that drips, and has not begun while a body is being sent."""
        with self.translated(key, operation):
            async with asyncio.timeout(self._settings.whole_request_ms / 1000):
                yield

    @contextmanager
    def translated(self, key: str, operation: str) -> Iterator[None]:
        """The one place where s3fs's and botocore's errors become ours."""
        keep_clients_quiet()
        try:
            yield
        except TieredStoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a client of clients: anything may come
            ours = self._ours(key, operation, error)
            # The store may quote a key id in its reply: then the cause is not passed on.
            raise ours from (None if self._settings.leaks_into(repr(error)) else error)

    def delete_error(self, entry: Mapping[str, Any], prefix: str) -> TieredStoreError:
        """One key's failure in a batch, which carries a code but no status."""
        code = str(entry.get("Code", ""))
        status = 500 if code in ("InternalError", "ServiceUnavailable", "SlowDown") else 403
        return error_of_reply(
            str(entry["Key"])[len(prefix) :],
            "delete_objects",
            status=status,
            code=code,
            message=self._told(str(entry.get("Message", ""))),
        )

    def _ours(self, key: str, operation: str, error: Exception) -> TieredStoreError:
        from botocore.exceptions import ClientError

        if isinstance(error, ClientError):
            said = error.response.get("Error", {})
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = str(said.get("Code", ""))
            if status == 416 or code == "InvalidRange":
                size = said.get("ActualObjectSize", "")
                end = int(size) if str(size).isdigit() else 0
                return OffsetOutOfRangeError(
                    f"a range of {key}", offset=end + 1, minimum=0, maximum=end
                )
            message = self._told(str(said.get("Message", "")))
            return error_of_reply(key, operation, status=status, code=code, message=message)
        kind = type(error).__name__
        if kind == "SSLError" and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return certificate_refused(key, operation, _CERTIFICATE.split(str(error))[-1])
        text = self._told(str(error))
        if isinstance(error, TimeoutError) and not text:
            text = f"no whole reply in {self._settings.whole_request_ms} ms"
        reason = one_line(f"{kind}: {text}")
        if kind in _REFUSED or isinstance(error, TypeError | AttributeError):
            return BackendRefusedError(key, operation, reason)
        return BackendUnavailableError(key, operation, reason)

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
        return filesystem


def _send_at_once(params: Mapping[str, Any], **_: Any) -> None:
    """A body waits for nobody's "100 Continue": that takes a round trip, and aiohttp waits for it
    without a limit on silence."""
    params["headers"].pop("Expect", None)


async def _listed(work: Coroutine[Any, Any, T]) -> list[T]:
    """In a list, since `sync` raises an error that is a result."""
    return [await work]


def _config(settings: ObjectStoreSettings) -> dict[str, Any]:
    # AWS's own "auto" keeps names that are no host names in the path.
    style = "path" if settings.path_addressing else settings.addressing
    return {
        "connect_timeout": settings.connect_timeout_ms / 1000,
        "read_timeout": settings.request_timeout_ms / 1000,
        "max_pool_connections": settings.connections_max,
        # The only layer that tries again is ours.
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": style},
        # Chunked bodies with trailing checksums, the default since 2025, break many other stores.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


def _release(filesystem: Any) -> None:
    filesystem.close_session(filesystem.loop, filesystem.s3)
