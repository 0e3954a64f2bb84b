"""A tier's requests to an object store, with retries. After a put with an unknown outcome, the
store is asked whether it succeeded."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from tieredstore.driver.object_client import (
    ListedKey,
    ObjectClient,
    ObjectExistsError,
    ObjectFacts,
    Range,
)
from tieredstore.driver.object_requests import RetryingClient
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.roundlog import frames

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, its bits reflected
_ONE: Final = 1 << 31


def crc32c(data: Buffer) -> int:
    return frames.crc32c(data)


def joined(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two concatenated pieces, from those of both and the length of the second."""
    return _product(_power(8 * second_bytes), first) ^ second


def _product(left: int, right: int) -> int:
    """The product of two polynomials over GF(2), modulo the checksum's polynomial."""
    result, bit = 0, _ONE
    while bit:
        if left & bit:
            result ^= right
        right = (right >> 1) ^ (_POLYNOMIAL if right & 1 else 0)
        bit >>= 1
    return result


@cache
def _squared(times: int) -> int:
    """x, squared this many times."""
    if not times:
        return _ONE >> 1
    half = _squared(times - 1)
    return _product(half, half)


def _power(exponent: int) -> int:
    """x to the power of `exponent`."""
    result, times = _ONE, 0
    while exponent:
        if exponent & 1:
            result = _product(_squared(times), result)
        exponent >>= 1
        times += 1
    return result


NONCE: Final = "tiered-nonce"
CHECKSUM: Final = "tiered-crc32c"

RANGE_BYTES_MAX: Final = 8 << 20  # the best size of one GET


class ObjectCalls:
    """One client, with retries.

    * A put is create-only, and is repeated until its outcome is known.
    * Every read returns as many bytes as were asked for. A long range is several requests.
    """

    def __init__(self, client: ObjectClient, runtime: Runtime, policy: RetryPolicy) -> None:
        self.client = RetryingClient(client, policy, runtime)
        self._writer = uuid.uuid4().hex
        self._number = itertools.count()

    def head(self, key: str) -> ObjectFacts | None:
        """Facts about the object; None if there is none."""
        try:
            return self.client.head(key)
        except SegmentNotFoundError:
            return None

    def listed(self, prefix: str) -> list[ListedKey]:
        return list(self.client.list(prefix))

    def put(self, key: str, data: Buffer, *, metadata: Mapping[str, str] | None = None) -> None:
        """Create an object. ObjectExistsError if one exists that this put did not create."""
        mine = {**(metadata or {}), NONCE: self.nonce(), CHECKSUM: f"{crc32c(data):08x}"}

        try:
            self.client.created(key, data, metadata=mine)
        except ObjectExistsError:  # from an attempt whose reply was lost, or from somebody else
            try:
                is_mine = self._is_mine(key, mine, data)
            except BackendRefusedError as error:  # the look was refused, and not the put
                raise BackendUnavailableError(key, error.operation, error.reason) from error
            if not is_mine:
                raise

    def put_stream(
        self, key: str, blocks: Iterable[Buffer], *, metadata: Mapping[str, str]
    ) -> None:
        """Create an object from a stream that can be read once; none if it has no bytes.

        After a lost reply the store is asked. BackendUnavailableError if there is no object: the
        caller, who has the source, starts over. ObjectExistsError if another put created one.
        """
        mine = {**metadata, NONCE: self.nonce()}
        try:
            self.client.put_stream(key, blocks, metadata=mine, if_absent=True)
        except (BackendUnavailableError, ObjectExistsError):
            found = self.head(key)
            if found is None or found.metadata.get(NONCE) != mine[NONCE]:
                raise

    def delete(self, keys: Sequence[str]) -> None:
        """Delete all keys. Raises the first error if some could not be deleted; an absent key is no
        error."""
        for error in self.undeleted(keys).values():
            raise error

    def undeleted(self, keys: Sequence[str]) -> Mapping[str, TieredStoreError]:
        """Delete all keys; return the errors of those that are still there."""
        errors, _ = self.client.deleted(keys)
        return {
            key: error
            for key, error in errors.items()
            if not isinstance(error, SegmentNotFoundError)
        }

    def ranges(self, wanted: Sequence[Range]) -> list[bytes]:
        """Each range, in order. Raises the first error if one cannot be read."""
        found: list[bytes] = []
        for answer in self.answers(wanted):
            if isinstance(answer, TieredStoreError):
                raise answer
            found.append(answer)
        return found

    def answers(self, wanted: Sequence[Range]) -> list[bytes | TieredStoreError]:
        """Each range or its error, in order."""
        pieces = [_pieces(of_object) for of_object in wanted]
        got = iter(self._got([piece for several in pieces for piece in several]))
        found: list[bytes | TieredStoreError] = []
        for several in pieces:
            whole: list[bytes] = []
            error: TieredStoreError | None = None
            for piece in itertools.islice(got, len(several)):
                if isinstance(piece, TieredStoreError):
                    error = error or piece
                else:
                    whole.append(piece)
            found.append(error or (whole[0] if len(whole) == 1 else b"".join(whole)))
        return found

    def _got(self, requests: Sequence[Range]) -> Sequence[bytes | TieredStoreError]:
        if len(requests) != 1:
            return self.client.get_ranges(requests) if requests else []
        only = requests[0]
        try:
            return [self.client.get_range(only.key, only.start, only.length)]
        except TieredStoreError as error:
            return [error]

    def nonce(self) -> str:
        """Unique in this process and among all others."""
        return f"{self._writer}-{os.getpid()}-{next(self._number)}"

    def _is_mine(self, key: str, mine: Mapping[str, str], data: Buffer) -> bool:
        try:
            found = self.client.head(key)
        except SegmentNotFoundError:
            return False  # somebody has deleted it since
        if NONCE in found.metadata:
            return found.metadata[NONCE] == mine[NONCE]
        # The client keeps no metadata: compare the bytes themselves.
        return found.size == len(data) and self.client.get_range(key, 0, found.size) == data


def _pieces(wanted: Range) -> list[Range]:
    """The requests for one range; none if it is empty."""
    end = wanted.start + wanted.length
    return [
        Range(wanted.key, start, min(RANGE_BYTES_MAX, end - start))
        for start in range(wanted.start, end, RANGE_BYTES_MAX)
    ]
