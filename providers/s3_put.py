"""Putting objects through s3fs: whole in one request, or a stream in parts.

What lives here: what a put carries (conditions, metadata, encryption, checksums) and the upload of
a stream.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import google_crc32c

from tieredstore.driver.lost_reply import Head, settling
from tieredstore.driver.object_client import Attempt, ObjectExistsError, ObjectFacts
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendRefusedError, SegmentNotFoundError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.providers.object_settings import ObjectStoreSettings
from tieredstore.providers.s3fs_connection import S3fsConnection

log = log_of(__name__)

PART_BYTES: Final = 8 * 1024 * 1024
PARTS_MAX: Final = 10_000
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
# What a reply may tell of a part, and the end of the upload has to repeat.
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
        if_match: str | None,
    ) -> ObjectFacts:
        asked = {
            **self._at(key),
            **self._object,
            **self._checksum(data),
            "Body": _body(data),
            "Metadata": dict(metadata),
        }
        if if_match is not None:
            asked["IfMatch"] = if_match if self._settings.etag_quoting else if_match.strip('"')
        elif if_absent:
            asked["IfNoneMatch"] = "*"
        try:
            reply = self._connection.call("put_object", key, **asked)
        except SegmentNotFoundError as error:
            # A replacement found nothing to replace: the object is another by now, namely none.
            raise ObjectExistsError(key) from error
        return ObjectFacts(
            key=key,
            size=memoryview(data).nbytes,
            etag=reply.get("ETag", ""),
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
        """Part after part: what is in memory is one part and one block."""
        self._connection.check_open()
        parts = gathered(blocks, PART_BYTES)
        first = next(parts, None)
        if first is None:
            return None
        if len(first) < PART_BYTES:  # there is no other
            whole = first

            def put() -> ObjectFacts:
                return self.put(key, whole, metadata=metadata, if_absent=if_absent, if_match=None)

            return attempt(settling(put, head, key, len(whole), metadata))
        upload_id = attempt(lambda: self._start(key, metadata))
        parts = itertools.chain([first], parts)
        first = None  # one part at a time is in memory, and what is sent of it
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
        upload_id: str = reply["UploadId"]
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
            return self._connection.call("upload_part", key, **asked, Body=_body(part))

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
        return ObjectFacts(key=key, size=size, etag=reply.get("ETag", ""), metadata=dict(metadata))

    def _give_up(self, key: str, upload_id: str) -> None:
        try:
            self.abort(key, upload_id)
        except TieredStoreError as error:
            log.warning("an upload of %s is left behind for the audit: %s", key, error)

    def _at(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._settings.bucket, "Key": self._settings.prefix + key}

    def _checksum(self, data: Buffer) -> dict[str, Any]:
        """As a plain header where we can tell it; only the rest is left to botocore."""
        name = self._settings.checksum
        if not name:
            return {}
        digest = _DIGESTS.get(name)
        if digest is None:
            return {"ChecksumAlgorithm": name.upper()}
        return {_DIGEST_FIELDS[name]: base64.b64encode(digest(data)).decode()}


def gathered(blocks: Iterable[Buffer], size: int) -> Iterator[bytearray]:
    """The stream cut into parts of exactly `size` bytes, the last one of what is left."""
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
    """A new one for each request, since sending reads it."""
    whole = data if isinstance(data, bytes) else bytes(data)
    # aiohttp warns of a large body at once, which would keep the loop from others.
    return io.BytesIO(whole) if len(whole) > _AT_ONCE_BYTES else whole
