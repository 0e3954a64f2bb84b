"""What a repair does, and no more: nothing here deletes a byte that somebody could still want.

What lives here: the steps, each finding for itself. What was found is from `audit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tieredstore.access.care.audit_report import Finding, FindingKind
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import Leftover, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat import doomed
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError, TieredStoreError
from tieredstore.model.values import SegmentType


def repaired(
    findings: Sequence[Finding],
    leftovers: Sequence[Leftover],
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
) -> list[Finding]:
    """The findings, those that could be repaired marked so, the others with what went wrong.

    Of one queue or object the failure leaves the others their repair; a catalogue that cannot be
    written ends it.
    """
    repair = _Repair(leftovers, metadata, provider, config, runtime)
    if any(each.kind is FindingKind.DOOMED for each in findings):
        doomed.finish(provider, metadata)
    return [repair.done(each) if each.repairable else each for each in findings]


class _Repair:
    def __init__(
        self,
        leftovers: Sequence[Leftover],
        metadata: MetadataStore,
        provider: SegmentProvider,
        config: StoreConfig,
        runtime: Runtime,
    ) -> None:
        self._leftovers = leftovers
        self._metadata = metadata
        self._provider = provider
        self._config = config
        self._runtime = runtime
        self._steps: dict[FindingKind, Callable[[Finding], str]] = {
            FindingKind.DOOMED: self._finish,
            FindingKind.ORPHANED: self._delete,
            FindingKind.ABANDONED_UPLOAD: self._remove,
            FindingKind.STRAY_PART: self._remove,
            FindingKind.STAGED: self._remove,
            FindingKind.BEHIND: self._catch_up,
        }

    def done(self, finding: Finding) -> Finding:
        try:
            failure = self._steps[finding.kind](finding)
        except MetadataError:
            raise
        except TieredStoreError as error:
            failure = str(error)
        return replace(finding, repaired=not failure, failure=failure)

    # Each step answers with why it could not, or with nothing.

    def _finish(self, finding: Finding) -> str:
        is_left = finding.path in self._metadata.notes(doomed.KIND)
        return "the backend has not deleted it" if is_left else ""

    def _delete(self, finding: Finding) -> str:
        place = finding.path, *_segment(finding)
        if self._metadata.segment(*place) is not None:
            return "a row names it by now"
        with self._provider.open(*place) as segment:
            segment.delete()
        return ""

    def _remove(self, finding: Finding) -> str:
        mine = [each for each in self._leftovers if _names(finding, each)]
        self._provider.remove_leftovers(mine)
        return ""

    def _catch_up(self, finding: Finding) -> str:
        """As at a start of the broker: what the units bear out counts."""
        _, topic, number = finding.path.split("/", 2)
        row = self._metadata.queue(topic, int(number))
        record = self._metadata.topic(topic)
        if row is None or record is None:
            return "the queue or its topic is not in the catalogue"
        file = FlatMessageFile(
            row,
            record,
            self._config,
            path=finding.path,
            provider=self._provider,
            metadata=self._metadata,
            clock=self._runtime.clock,
        )
        try:
            recover(file, self._metadata, self._runtime.clock)
            known = self._metadata.segment(finding.path, *_segment(finding))
            with self._provider.open(finding.path, *_segment(finding)) as segment:
                more = segment.size() - (known.size if known is not None else 0)
            unnamed = f"no unit names the last {more} bytes: they stay as they are" if more else ""
            return file.problem or unnamed
        finally:
            file.close()


def _segment(finding: Finding) -> tuple[SegmentType, int]:
    if finding.type is None or finding.base is None:
        raise ValueError(f"{finding.path} is no segment")
    return finding.type, finding.base


def _names(finding: Finding, leftover: Leftover) -> bool:
    return (leftover.kind, leftover.name) == (finding.kind.value, finding.path)
