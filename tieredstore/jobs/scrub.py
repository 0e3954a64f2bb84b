"""Verifies a tier over and over, slowly enough not to disturb anything.

Passes follow each other with a pause in between. Within a pass, parts are read one after the other,
and each takes at least as long as its bytes need at the given rate.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from tieredstore.driver.durable import write_atomically
from tieredstore.driver.metrics import (
    SCRUB_AGE,
    SCRUB_BYTES,
    SCRUB_FINDINGS,
    SCRUB_PROGRESS,
    Labels,
    Metrics,
    NoMetrics,
)
from tieredstore.driver.runtime import Clock
from tieredstore.jobs.job import (
    ItemResult,
    JobReport,
    JobState,
    OnProgress,
    Plan,
    Progress,
    RowStream,
    no_progress,
    run_item,
)
from tieredstore.jobs.verify import OnFindings, VerifyItem, VerifyJob
from tieredstore.jobs.verify_findings import Findings, VerifyRow
from tieredstore.jobs.verify_slice import SliceItem
from tieredstore.jobs.worker import worker_provider
from tieredstore.model.errors import InvalidConfigError, TieredStoreError
from tieredstore.model.findings import Severity
from tieredstore.model.printable import log_of
from tieredstore.model.values import Json

log = log_of(__name__)

RATE_BYTES: Final = 8 * 1024 * 1024
PAUSE_SECONDS: Final = 3_600
PAUSE_SECONDS_MIN: Final = 1
NOTED_SECONDS: Final = 10.0
STATE_BYTES_MAX: Final = 64 * 1024
_FORMAT: Final = 1

Place: TypeAlias = tuple[int, str, int, int]
"""Where a part of a tier ends. Parts come in this order, however the tier is divided."""


def place_of(item: VerifyItem) -> Place:
    if isinstance(item, SliceItem):
        key = item.slice.key
        return 0, key.topic, key.queue_id, item.slice.end_offset
    return 1, "", -item.row.base_offset, item.part


@dataclass(slots=True)
class ScrubState:
    """The progress of a pass, its findings by severity, and those of the pass before.

    `left_out`: a part of the tier could not be read, and the pass continues without it.
    """

    after: Place | None = None
    found: Counter[str] = field(default_factory=Counter)
    found_before: Counter[str] = field(default_factory=Counter)
    ended_ms: int | None = None  # when the last whole pass ended
    left_out: bool = False

    def as_json(self, tier: str, endpoint: str) -> dict[str, Json]:
        return {
            "format": _FORMAT,
            "tier": tier,
            "endpoint": endpoint,
            "after": None if self.after is None else list(self.after),
            "found": dict(self.found),
            "found_before": dict(self.found_before),
            "ended_ms": self.ended_ms,
            "left_out": self.left_out,
        }

    @classmethod
    def read(cls, path: Path, tier: str, endpoint: str) -> ScrubState:
        """The state in a file; a new one without a file. InvalidConfigError for any other file."""
        try:
            with path.open("rb") as file:
                data = file.read(STATE_BYTES_MAX + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            row = json.loads(data) if len(data) <= STATE_BYTES_MAX else {}
            if row["format"] != _FORMAT:
                raise ValueError("another format")
            after, ended_ms = row["after"], row["ended_ms"]
            if after is not None:
                kind, topic, number, end = after
                after = int(kind), str(topic), int(number), int(end)
            state = cls(after, ended_ms=None if ended_ms is None else int(ended_ms))
            state.left_out = bool(row.get("left_out", False))  # not in earlier versions
            place = row["tier"], row.get("endpoint", endpoint)  # likewise
            for severity in Severity:
                state.found[severity.value] = int(row["found"].get(severity.value, 0))
                state.found_before[severity.value] = int(row["found_before"].get(severity.value, 0))
        except (
            ValueError,
            OverflowError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise InvalidConfigError(f"{path}: this is no state of a scrub") from error
        if place != (tier, endpoint):
            there = " at ".join(str(part) for part in place if part)
            raise InvalidConfigError(f"{path}: this is the state of another tier, {there}")
        return state


class Scrub:
    """Verifies a tier in endless passes. Changes nothing but its own `state` file.

    * An interrupted pass is resumed, even by another process if `state` names a file. A resumed
      pass does not compare keys: those read before are forgotten.
    * A part that the backend does not return is left for the next pass. A pass that cannot be
      planned or finished is tried again after a pause; only the first pass raises.
    * In memory it keeps the same data as `verify`: the plan, and sums of keys, which are bounded.
    * One thread uses it, and an exception in that thread, such as KeyboardInterrupt, ends it: every
      wait is `clock.sleep`.
    """

    def __init__(
        self,
        job: VerifyJob,
        *,
        clock: Clock,
        rate_bytes: int = RATE_BYTES,
        pause_seconds: float = PAUSE_SECONDS,
        state: Path | None = None,
        metrics: Metrics | None = None,
        told: OnFindings = lambda _: None,
        on_progress: OnProgress = no_progress,
    ) -> None:
        """`told` gets the findings as they are made."""
        if rate_bytes < 1:
            raise InvalidConfigError(f"rate_bytes: {rate_bytes} is less than 1")
        self._job = job
        self._clock = clock
        self._rate = rate_bytes
        self._pause = max(PAUSE_SECONDS_MIN, pause_seconds)
        self._path = state
        self._tier, self._endpoint = _name_of(job), job.config.endpoint.rstrip("/")
        self._state = (
            ScrubState() if state is None else ScrubState.read(state, self._tier, self._endpoint)
        )
        self._note()
        self._told = told
        self._on_progress = on_progress
        self._progress = 0.0
        self._metrics = metrics or NoMetrics()
        self._metrics.observe(SCRUB_PROGRESS, lambda: [(self._progress, {})])
        self._metrics.observe(SCRUB_FINDINGS, self._shown_findings)
        self._metrics.observe(SCRUB_AGE, self._shown_age)

    def passes(self) -> Iterator[JobReport]:
        """The report of each pass when it ends."""
        has_worked = False
        while True:
            try:
                report = self._pass()
            except (TieredStoreError, OSError) as error:
                if not has_worked:
                    raise
                log.warning("the pass was interrupted and is resumed: %s", error)
            else:
                has_worked = True
                yield report
            self._clock.sleep(self._pause)

    def _pass(self) -> JobReport:
        plan = self._job.plan()
        begun = self._clock.monotonic()
        try:
            with closing(self._results(plan)) as results:
                rows = RowStream(results, item_count=len(plan.items))
                report = self._job.finish(plan, rows, told=self._find)
            state = self._state
            state.left_out |= report.state is JobState.INCOMPLETE
            if report.state is not JobState.DONE:
                # What the pass before found may be in a part or a key that this one left out.
                state.found |= state.found_before
            state.found_before, state.found, state.after = state.found, Counter(), None
            if not state.left_out:
                state.ended_ms = self._clock.now_ms()
            state.left_out = False
        finally:
            self._note()
        return replace(report, seconds=self._clock.monotonic() - begun)

    def _results(self, plan: Plan[VerifyItem]) -> Generator[ItemResult[VerifyRow], None, None]:
        """The results of the parts that are left in this pass."""
        bytes_done = 0
        for number, item in enumerate(plan.items):
            size, place = plan.bytes_of(number), place_of(item)
            if self._state.after is None or place > self._state.after:
                begun = self._clock.monotonic()
                worker_provider(self._job.config).refresh()  # merged bytes lie elsewhere now
                result = run_item(self._job.work, item, number)
                self._state.left_out |= result.failure is not None
                yield result
                self._state.after = place
                self._metrics.add(SCRUB_BYTES, size, {})
                spent = self._clock.monotonic() - begun
                self._clock.sleep(max(0.0, size / self._rate - spent))
                if self._clock.monotonic() - self._noted >= NOTED_SECONDS:
                    self._note()
            bytes_done += size
            self._progress = bytes_done / max(1, plan.bytes_total)
            self._on_progress(
                Progress(
                    items_done=number + 1,
                    items_total=len(plan.items),
                    bytes_done=bytes_done,
                    bytes_total=plan.bytes_total,
                )
            )

    def _find(self, findings: Findings) -> None:
        for kind, count in findings.totals.items():
            self._state.found[kind.severity.value] += count
        self._told(findings)

    def _shown_findings(self) -> Iterator[tuple[float, Labels]]:
        """The findings of the last pass stay until a whole pass has found less."""
        found, before = self._state.found, self._state.found_before
        for severity in Severity:
            name = severity.value
            yield max(found[name], before[name]), {"severity": name}

    def _shown_age(self) -> Iterator[tuple[float, Labels]]:
        ended_ms = self._state.ended_ms
        if ended_ms is not None:
            yield max(0, self._clock.now_ms() - ended_ms) / 1000, {}

    def _note(self) -> None:
        self._noted = self._clock.monotonic()
        if self._path is None:
            return
        try:
            data = json.dumps(self._state.as_json(self._tier, self._endpoint)).encode()
            write_atomically(self._path, [data])
        except OSError as error:  # a restart then begins at the last state that was written
            log.warning("%s: the state of the scrub is not written: %s", self._path, error)


def _name_of(job: VerifyJob) -> str:
    """A name for the tier and the topics that are verified."""
    config = job.config
    place = config.path or config.url or f"{config.bucket}/{config.prefix}"
    topics = f" {','.join(job.topics)}" if job.topics else ""
    return f"{config.provider}:{place} {config.cluster_name} {config.broker_name}{topics}"
