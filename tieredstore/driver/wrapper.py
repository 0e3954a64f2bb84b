"""A segment and a provider around another: the ground that retry, metrics and fault tests share.

What lives here: forwarding, nothing else. A wrapper is a segment too and passes the same contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tieredstore.driver.provider import Leftover, ListedSegment, ProbeFinding, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import Buffer, FileSegment
from tieredstore.model.values import SegmentType

if TYPE_CHECKING:
    from tieredstore.driver.generations import Generations
    from tieredstore.driver.metrics import Metrics
    from tieredstore.driver.scratch import Scratch


class SegmentWrapper(FileSegment):
    """Forwards everything to `inner`."""

    def __init__(self, inner: FileSegment) -> None:
        super().__init__(inner.queue_path, inner.type, inner.base)
        self.inner = inner

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def is_full(self) -> bool:
        return self.inner.is_full

    @property
    def wants_seal(self) -> bool:
        return self.inner.wants_seal

    def size(self) -> int:
        return self.inner.size()

    def read(self, position: int, length: int) -> bytes:
        return self.inner.read(position, length)

    def write(self, position: int, data: Buffer) -> None:
        self.inner.write(position, data)

    def seal(self) -> None:
        self.inner.seal()

    def delete(self) -> None:
        self.inner.delete()

    def close(self) -> None:
        self.inner.close()


class ProviderWrapper(SegmentProvider):
    """Wraps what `inner` opens and forwards the rest.

    `read_many` and `write_many` keep their defaults here, which go through the wrapped segments.
    A provider with better ways of its own brings its own retry and metrics and needs no wrapper.
    """

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.inner = inner
        self.retries_itself = inner.retries_itself

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return SegmentWrapper(segment)

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        return self.wrap(self.inner.open(path, type, base))

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        return self.inner.list(prefix)

    def create(self, segment: FileSegment, blocks: Iterable[Buffer]) -> int:
        """By the inner provider, which may know a better way than write after write."""
        inner = segment.inner if isinstance(segment, SegmentWrapper) else segment
        return self.inner.create(inner, blocks)

    def refresh(self) -> None:
        self.inner.refresh()

    def report_to(self, metrics: Metrics) -> None:
        self.inner.report_to(metrics)

    def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
        return self.inner.leftovers(prefix)

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> None:
        self.inner.remove_leftovers(leftovers)

    def generations(self, broker: str) -> Generations | None:
        return self.inner.generations(broker)

    def scratch(self, broker: str) -> Scratch | None:
        return self.inner.scratch(broker)

    def places(self) -> Sequence[tuple[str, str]] | None:
        return self.inner.places()

    def probe(self) -> Sequence[ProbeFinding]:
        return self.inner.probe()

    def close(self) -> None:
        self.inner.close()
