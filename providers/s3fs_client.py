"""S3 through s3fs: its connection pool and event loop, S3's own operations.

What lives here: `S3fsClient`. Operations are sent on the client that s3fs holds, not through its
filesystem calls: those look before they act, cache listings, hide error codes and try again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tieredstore.driver.lost_reply import refuse_conflict
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
from tieredstore.providers.s3_errors import no_batch_delete
from tieredstore.providers.s3_put import S3Puts
from tieredstore.providers.s3fs_connection import S3fsConnection


class S3fsClient(ObjectClient):
    """One bucket and prefix of an S3-like store.

    Each call is one request, but for streams, long listings and more than 1 000 deletes. Nothing
    is tried again here.
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
        return ObjectCapabilities(create_only=exact, if_match=exact)

    def describe(self) -> str:
        return f"s3fs, {self._settings.place()}"

    def head(self, key: str) -> ObjectFacts:
        reply = self._connection.call("head_object", key, **self._at, Key=self._prefix + key)
        metadata = {name.lower(): value for name, value in reply.get("Metadata", {}).items()}
        return ObjectFacts(
            key=key, size=reply["ContentLength"], etag=reply.get("ETag", ""), metadata=metadata
        )

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
        if_match: str | None = None,
    ) -> ObjectFacts:
        exact = self._settings.conditional_put
        if not exact and (if_absent or if_match is not None):
            refuse_conflict(self.head, key, if_match)
        return self._puts.put(
            key,
            data,
            metadata=metadata or {},
            if_absent=if_absent and exact,
            if_match=if_match if exact else None,
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
            attempt(lambda: refuse_conflict(self.head, key, None))
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
        while True:
            page = self._connection.call("list_objects_v2", prefix, **asked)
            for entry in page.get("Contents", ()):
                yield ListedKey(entry["Key"][len(self._prefix) :], entry["Size"])
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

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
        while True:
            try:
                page = self._connection.call("list_multipart_uploads", prefix, **asked)
            except BackendRefusedError as error:
                if "NoSuchUpload" not in str(error):
                    raise
                return found  # some stores say so where there is none
            found += [
                AbandonedUpload(entry["Key"][len(self._prefix) :], entry["UploadId"])
                for entry in page.get("Uploads", ())
                if entry["Key"].startswith(self._prefix + prefix)
            ]
            if not page.get("IsTruncated"):
                return found
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["UploadIdMarker"] = page["NextUploadIdMarker"]

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
                data: bytes = await body.read()
        if len(data) != length:
            refuse_short(key, start, length, reply.get("ContentRange", ""), len(data))
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
        return {
            entry["Key"][len(self._prefix) :]: self._connection.delete_error(entry, self._prefix)
            for entry in reply.get("Errors", ())
            if entry.get("Code") != "NoSuchKey"
        }

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


def refuse_short(key: str, start: int, length: int, content_range: str, got: int) -> None:
    """A reply of another length: beyond the end if the reply says so, else the reply is bad."""
    total = content_range.rpartition("/")[2]
    if total.isdigit() and int(total) < start + length:
        raise beyond_end(key, start, length, int(total))
    raise BackendUnavailableError(key, "get_object", f"{got} bytes came instead of {length}")
