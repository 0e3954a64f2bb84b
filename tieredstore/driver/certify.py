"""Proof that an object store can be trusted with a tier, and the certificate that records it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tieredstore.driver.object_client import (
    KeysExpiredError,
    ObjectClient,
    ObjectExistsError,
    ObjectFacts,
    OtherBytesError,
    Range,
)
from tieredstore.driver.runtime import SystemClock, ThreadPool
from tieredstore.model.errors import (
    BackendUnavailableError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
    TieredStoreError,
)
from tieredstore.model.findings import Finding

# Earlier versions made these checks and recorded them in certificates; no tier puts with If-Match.
_RETIRED: Final = frozenset({"if-match", "if-match-race"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What a store was asked to prove, and whether it did."""

    client: str
    findings: tuple[Finding, ...]
    elapsed_ms: int

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_damage)

    def summary(self) -> str:
        """One line; also the reason in a refusal to write."""
        if self.passed:
            return f"{self.client}: {len(self.findings)} checks passed in {self.elapsed_ms} ms"
        named = "; ".join(f"{finding.kind}: {finding.detail}" for finding in self.failures)
        return f"{self.client} is not to be trusted: {named}"

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        rows = [[found.kind, not found.is_damage, found.detail] for found in self.findings]
        return json.dumps(
            {"client": self.client, "findings": rows, "elapsed_ms": self.elapsed_ms},
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """The certificate, without checks that only earlier versions made. ValueError for any other
        text."""
        try:
            kept = json.loads(text)
            findings = tuple(
                Finding.of_check(str(check), passed is True, str(detail))
                for check, passed, detail in kept["findings"]
                if check not in _RETIRED
            )
            return cls(
                client=str(kept["client"]), findings=findings, elapsed_ms=int(kept["elapsed_ms"])
            )
        except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise ValueError("this is no certificate") from error


PREFIX: Final = ".certify"
RACERS: Final = 16
RACES: Final = 8  # with some stores only some races go wrong
_DATA: Final = bytes(range(256)) * 16
_PARTS: Final = (bytes(4 * 1024 * 1024),) * 4 + (b"end",)  # more than any client puts at once
# Characters that topics may have: this finds stores that mangle keys.
_ODD: Final = "%RETRY%a|b/主题 +~&=;(*)"


def certify(client: ObjectClient, *, page_keys: int = 1_001) -> Certificate:
    """Ask a store to prove conditions, ranges, listing and deletes, in objects of its own.

    Takes about `page_keys` small puts, a hundred other requests and less than a minute; leaves
    nothing behind. A failure of the network, a store that answers 5xx, or keys that expire
    meanwhile are no verdict: BackendUnavailableError or KeysExpiredError is raised and names the
    check. BackendRefusedError is raised if the very first put is refused.
    """
    clock = SystemClock()
    started = clock.monotonic()
    pool = ThreadPool("certify", threads=RACERS, pending_max=4 * RACERS)
    examination = _Examination(client, pool, f"{PREFIX}/{uuid.uuid4().hex}/")
    try:
        try:
            examination.run(page_keys)
        except TieredStoreError:
            with suppress(TieredStoreError):  # the first failure is the one that counts
                examination.clean_up()
            raise
        examination.clean_up()
    finally:
        pool.close()
    elapsed_ms = int((clock.monotonic() - started) * 1000)
    return Certificate(
        client=client.describe(), findings=tuple(examination.findings), elapsed_ms=elapsed_ms
    )


class _Examination:
    """One run of all checks below one prefix."""

    def __init__(self, client: ObjectClient, pool: ThreadPool, prefix: str) -> None:
        self._client = client
        self._pool = pool
        self._prefix = prefix
        self._made: set[str] = set()  # kept here, as the listing itself may fail
        self.findings: list[Finding] = []

    def run(self, page_keys: int) -> None:
        self._made.add(self._prefix + "first")
        self._client.put(self._prefix + "first", _DATA, metadata={"nonce": "first"})
        checks: list[tuple[str, Callable[[], str]]] = [
            ("read-after-write", self._read_after_write),
            ("metadata", self._metadata),
            ("odd-keys", self._odd_keys),
            ("ranges", self._ranges),
            ("range-beyond-end", self._beyond_end),
            ("create-only", self._create_only),
            ("create-only-parts", self._create_parts),
            ("create-only-race", self._create_race),
            ("listing", lambda: self._listing(page_keys)),
            ("delete", self._delete),
        ]
        for name, check in checks:
            try:
                detail = check()
            except OtherBytesError as error:  # a reply, though no client accepts it
                detail = str(error)
            except (BackendUnavailableError, KeysExpiredError) as error:
                text = f"{error.reason} (at the check {name})"
                raise type(error)(error.path, error.operation, text) from error
            except TieredStoreError as error:
                detail = str(error)
            self.findings.append(Finding.of_check(name, not detail, detail))

    def _put(self, key: str, data: bytes) -> ObjectFacts:
        """Put with unique metadata, so that a layer that retries can settle lost replies."""
        self._made.add(key)
        nonce = {"nonce": uuid.uuid4().hex}
        return self._client.put(key, data, metadata=nonce)

    def clean_up(self) -> None:
        self._client.delete_many(sorted(self._made))

    # Each check returns what is wrong, or an empty text.

    def _read_after_write(self) -> str:
        for turn in range(4):
            key = f"{self._prefix}fresh-{turn}"
            self._put(key, _DATA)
            if self._client.head(key).size != len(_DATA):
                return "a new object has another size"
            if self._client.get_range(key, 0, len(_DATA)) != _DATA:
                return "a new object has other bytes"
            if key not in {found.key for found in self._client.list(key)}:
                return "a new object is not in the listing"
        return ""

    def _metadata(self) -> str:
        found = self._client.head(self._prefix + "first").metadata.get("nonce")
        return "" if found == "first" else f"put 'first', got back {found!r}"

    def _odd_keys(self) -> str:
        key = self._prefix + _ODD
        self._put(key, b"odd")
        listed = [found.key for found in self._client.list(key)]
        if listed != [key] or self._client.get_range(key, 0, 3) != b"odd":
            return f"a key with odd characters comes back as {listed}"
        return ""

    def _ranges(self) -> str:
        key = self._prefix + "first"
        wanted = [(0, 1), (1, 255), (4095, 1), (100, 3996), (0, 4096), (2048, 8)]
        found = self._client.get_ranges([Range(key, start, length) for start, length in wanted])
        for (start, length), data in zip(wanted, found, strict=True):
            if isinstance(data, TieredStoreError):
                raise data
            if data != _DATA[start : start + length]:
                return f"bytes {start} to {start + length} are others"
        return ""

    def _beyond_end(self) -> str:
        for start, length in ((4090, 10), (4096, 1), (10_000, 10)):
            try:
                self._client.get_range(self._prefix + "first", start, length)
            except OffsetOutOfRangeError:
                continue
            return f"bytes {start} to {start + length} of {len(_DATA)} are no error"
        return ""

    def _create_only(self) -> str:
        key = self._prefix + "first"
        try:
            self._put(key, b"other")
        except ObjectExistsError:
            size = self._client.head(key).size
            return "" if size == len(_DATA) else "a refused create changed the object"
        return "an object was created over another"

    def _create_parts(self) -> str:
        """A large object is uploaded in parts, and only the last request has the condition."""
        key = self._prefix + "parts"
        self._put(key, _DATA)
        try:
            self._client.put_stream(key, _PARTS, metadata={"nonce": uuid.uuid4().hex})
        except ObjectExistsError:
            size = self._client.head(key).size
            return "" if size == len(_DATA) else "a refused upload changed the object"
        return "an upload in parts was completed over another object"

    def _create_race(self) -> str:
        for race in range(RACES):
            key = f"{self._prefix}race-{race}"
            problem = self._raced(key)
            if problem:
                return problem
        return ""

    def _raced(self, key: str) -> str:
        """All racers put at once; at most one may win, and the object must be the winner's."""

        def put(number: int) -> ObjectFacts:
            return self._put(key, f"racer-{number:03}".encode())

        outcomes = _outcomes([self._pool.submit(put, number) for number in range(RACERS)])
        winners = [place for place, error in enumerate(outcomes) if error is None]
        doubtful = [
            place
            for place, error in enumerate(outcomes)
            if isinstance(error, BackendUnavailableError)  # such as a 409, which asks for a retry
        ]
        for error in outcomes:
            if error is not None and not isinstance(
                error, ObjectExistsError | BackendUnavailableError
            ):
                raise error
        if len(winners) > 1:
            return f"{len(winners)} of {RACERS} racing writers won"
        try:
            there = int(self._client.get_range(key, 6, 3))
        except (SegmentNotFoundError, OffsetOutOfRangeError, ValueError):
            there = -1
        if there not in (winners or doubtful):
            return "what is there is not what the winner wrote"
        return ""

    def _listing(self, page_keys: int) -> str:
        keys = [f"{self._prefix}page/{number:06}" for number in range(page_keys)]
        for error in _outcomes([self._pool.submit(self._put, key, b"x") for key in keys]):
            if error is not None:
                raise error
        listed = [found.key for found in self._client.list(self._prefix + "page/")]
        if listed != keys:
            return f"{len(keys)} keys put, {len(listed)} listed, or not in order"
        behind = [found.key for found in self._client.list(self._prefix + "page/", after=keys[-3])]
        return "" if behind == keys[-2:] else "a listing behind a key begins elsewhere"

    def _delete(self) -> str:
        pages = self._prefix + "page/"
        keys = sorted(key for key in self._made if key.startswith(pages))
        errors = self._client.delete_many([*keys, pages + "absent"])
        for error in errors.values():
            raise error
        self._made.difference_update(keys)
        left = sum(1 for _ in self._client.list(pages))
        if left:
            return f"{left} deleted objects are still listed"
        try:
            self._client.head(keys[0])
        except SegmentNotFoundError:
            return ""
        return "a deleted object is still there"


def _outcomes(futures: Sequence[Future[ObjectFacts]]) -> list[TieredStoreError | None]:
    outcomes: list[TieredStoreError | None] = []
    for future in futures:
        error = future.exception()
        if error is not None and not isinstance(error, TieredStoreError):
            raise error
        outcomes.append(error)
    return outcomes
