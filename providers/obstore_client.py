"""S3 through obstore's native API: a tenth of the processor time for each request.

What lives here: `ObstoreClient`. What obstore has no call for (uploads that create only, uploads
left behind, keys that it does not parse) a second client does, where s3fs is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tieredstore.driver.lost_reply import refuse_conflict, settling
from tieredstore.driver.object_client import (
    KEYS_PER_REQUEST,
    AbandonedUpload,
    Attempt,
    ListedKey,
    ObjectCapabilities,
    ObjectClient,
    ObjectFacts,
    Range,
    beyond_end,
    check_object_range,
    once,
)
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.providers.object_settings import ObjectStoreSettings
from tieredstore.providers.obstore_connection import (
    ObstoreConnection,
    ShortReply,
    UnparsedKeyError,
    just_before,
    started_elsewhere,
)
from tieredstore.providers.s3_errors import no_batch_delete
from tieredstore.providers.s3_put import gathered

WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
_TURN: Final = 4  # ranges for each connection, then others that wait for one have a chance


class ObstoreClient(ObjectClient):
    """One bucket and prefix of an S3-like store.

    * obstore's threads do not survive a fork, and its calls then wait for ever: in a process that
      was forked from one that used it, the second client does everything.
    * It has no conditional end of an upload: the second client sends streams of more than one
      part; without it one request does up to 64 MiB, and more is refused.
    """

    def __init__(self, settings: ObjectStoreSettings, second: ObjectClient | None) -> None:
        self._settings = settings
        self._prefix = settings.prefix
        self._second = second
        self._live = ObstoreConnection(settings)

    @property
    def capabilities(self) -> ObjectCapabilities:
        exact = self._settings.conditional_put
        return ObjectCapabilities(
            create_only=exact, if_match=exact, paged_uploads=self._second is not None
        )

    def describe(self) -> str:
        return f"obstore, {self._settings.place()}"

    def head(self, key: str) -> ObjectFacts:
        if started_elsewhere():
            return self._instead("head").head(key)
        with self._live.translated(key, "head") as (obstore, store):
            found = obstore.get(store, self._prefix + key, options={"head": True})
            metadata = {
                name: value
                for name, value in found.attributes.items()
                if not name[0].isupper()  # those that S3 itself knows are written like headers
            }
            return ObjectFacts(
                key=key,
                size=found.meta["size"],
                etag=found.meta["e_tag"] or "",
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
        if_match: str | None = None,
    ) -> ObjectFacts:
        if started_elsewhere():
            return self._instead("put").put(
                key, data, metadata=metadata, if_absent=if_absent, if_match=if_match
            )
        mode: Any = "overwrite"
        if not self._settings.conditional_put:
            if if_absent or if_match is not None:
                refuse_conflict(self.head, key, if_match)
        elif if_match is not None:
            mode = {"e_tag": if_match if self._settings.etag_quoting else if_match.strip('"')}
        elif if_absent:
            mode = "create"
        attributes = dict(metadata or {})
        if self._settings.storage_class:
            attributes["Storage-Class"] = self._settings.storage_class
        with self._live.translated(key, "put") as (obstore, store):
            reply = obstore.put(
                store,
                self._prefix + key,
                data,
                attributes=attributes,
                mode=mode,
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
        """obstore's own prefixes are folders: within one it starts behind a key and stops early."""
        wanted = self._prefix + prefix
        folder = wanted.rpartition("/")[0]
        behind = max(just_before(wanted), self._prefix + after if after else "")
        last = after
        try:
            for path, size in self._live.pages(prefix, folder, behind):
                if path > wanted and not path.startswith(wanted):
                    return
                if path < wanted or path <= behind:
                    continue
                last = path[len(self._prefix) :]
                yield ListedKey(last, size)
        except UnparsedKeyError:
            yield from self._instead("list").list(prefix, after=last)

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
            except BackendRefusedError as error:
                if self._second is not None and no_batch_delete(error):  # obstore has no other
                    errors |= self._second.delete_many(batch)
                    continue
                # It names one failed key only, and which others are gone it does not say.
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
        """Fewer bytes than asked for: the object's size tells whether the reply was bad."""
        size = self.head(key).size
        if size < start + length:
            return beyond_end(key, start, length, size)
        return BackendUnavailableError(key, "get", f"{got} bytes came instead of {length}")

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
