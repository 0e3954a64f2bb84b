"""Every request to a backend is measured, under RocketMQ's names.

What lives here: the segment and the provider that measure. What the measurements are called is in
`metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from tieredstore.driver.metrics import DOWNLOAD_BYTES, RPC_LATENCY, UPLOAD_BYTES, Metrics
from tieredstore.driver.provider import SegmentProvider, SegmentRead, WritePair
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.driver.wrapper import ProviderWrapper, SegmentWrapper

P = ParamSpec("P")
T = TypeVar("T")


class MeasuredSegment(SegmentWrapper):
    """A segment whose reads and writes are measured under RocketMQ's names."""

    def __init__(self, inner: FileSegment, metrics: Metrics, runtime: Runtime) -> None:
        super().__init__(inner)
        self._metrics = metrics
        self._clock = runtime.clock
        self._labels = {"path": inner.queue_path, "file_type": inner.type.name.lower()}

    def read(self, position: int, length: int) -> bytes:
        data = self.measured("read", self.inner.read, position, length)
        self.record_download(len(data))
        return data

    def write(self, position: int, data: Buffer) -> None:
        self.measured("write", self.inner.write, position, data)
        self.record_upload(memoryview(data).nbytes)

    def record_download(self, size: int) -> None:
        self._metrics.record(DOWNLOAD_BYTES, size, {**self._labels, "operation": "read"})

    def record_upload(self, size: int) -> None:
        self._metrics.record(UPLOAD_BYTES, size, {**self._labels, "operation": "write"})

    def measured(
        self, operation: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        started = self._clock.monotonic()
        success = False
        try:
            outcome = call(*args, **kwargs)
            success = True
            return outcome
        finally:
            self.record_call(operation, started, success=success)

    def record_call(self, operation: str, started: float, *, success: bool) -> None:
        spent_ms = (self._clock.monotonic() - started) * 1000
        labels = {**self._labels, "operation": operation, "success": str(success).lower()}
        self._metrics.record(RPC_LATENCY, spent_ms, labels)


class MeasuredProvider(ProviderWrapper):
    """A provider whose segments are measured."""

    def __init__(self, inner: SegmentProvider, metrics: Metrics, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self._metrics = metrics

    def wrap(self, segment: FileSegment) -> MeasuredSegment:
        return MeasuredSegment(segment, self._metrics, self._runtime)

    def read_many(self, reads: Sequence[SegmentRead]) -> Sequence[bytes]:
        """Each by itself, or in the provider's own way: then each took as long as all."""
        if not self.retries_itself:
            return super().read_many(reads)
        started = self._runtime.clock.monotonic()
        results: Sequence[bytes] | None = None
        try:
            results = self.inner.read_many(reads)
        finally:
            for each in _measured(read.segment for read in reads):
                each.record_call("read", started, success=results is not None)
        for read, data in zip(reads, results, strict=True):
            for each in _measured([read.segment]):
                each.record_download(len(data))
        return results

    def write_many(self, pairs: Sequence[WritePair]) -> Sequence[Future[None]]:
        """Each by itself, or in the provider's own way: then both of a pair took as long."""
        if not self.retries_itself:
            return super().write_many(pairs)
        started = self._runtime.clock.monotonic()
        futures = self.inner.write_many(pairs)
        for pair, future in zip(pairs, futures, strict=True):
            future.add_done_callback(partial(self._record_pair, pair, started))
        return futures

    def _record_pair(self, pair: WritePair, started: float, future: Future[None]) -> None:
        success = not future.cancelled() and future.exception() is None
        for write in (pair.log, pair.queue):
            if write is not None:
                for each in _measured([write.segment]):
                    each.record_call("write", started, success=success)
                    if success:
                        each.record_upload(memoryview(write.data).nbytes)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        if not isinstance(segment, MeasuredSegment):
            return super().create(segment, blocks)
        size = segment.measured("write", super().create, segment, blocks)
        segment.record_upload(size)
        return size


def _measured(segments: Iterable[FileSegment]) -> Iterator[MeasuredSegment]:
    return (each for each in segments if isinstance(each, MeasuredSegment))
