"""The job `verify`: every byte of a tier is read, and what does not fit together is named.

What lives here: `VerifyJob`. It reads each segment and each index file once, as fast as they come:

* each unit of a queue names a whole message of that topic, queue and queue offset, whose tags have
  the code of the unit, whose body has the CRC it should have, and that knows its own place;
* what no unit names is told apart: end markers, copies, what the log has and the queue not yet;
* each entry of an index file is in the slot where a lookup looks, each slot where its fence says;
* the keys of all messages and the entries of all index files are the same (`verify_sums`);
* catalogue and backend agree, which is what `audit` looks at.

What no checksum covers, nobody can verify: of a delayed message's unit that is the time of its
delivery, which it has in the place of a tags code; of a record that are flag, born time and host,
store host, reconsume times, the prepared offset and the properties other than TAGS, KEYS and
UNIQ_KEY. A store time is held against the times of its segment and the seconds of its index
entries.

Damage ends with exit code 4; notes and leftovers do not. Nothing is changed: there is no repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tieredstore.access.care.audit import audit
from tieredstore.access.care.audit_report import Finding, Severity
from tieredstore.access.wiring import GivenParts, open_tier, published_catalogue
from tieredstore.driver.metadata import Json
from tieredstore.jobs.job import Plan, RowStream
from tieredstore.jobs.job_report import FINDINGS_MAX, JobReport
from tieredstore.jobs.reading.slices import SPLIT_BYTES
from tieredstore.jobs.verification.verify_entries import EntryComparison
from tieredstore.jobs.verification.verify_findings import Findings, VerifyFinding, VerifyRow
from tieredstore.jobs.verification.verify_index import IndexItem, verify_index
from tieredstore.jobs.verification.verify_keys import KeyComparison, within
from tieredstore.jobs.verification.verify_local_index import verify_local_index
from tieredstore.jobs.verification.verify_plan import TierPicture, VerifyItem, indexed_queues
from tieredstore.jobs.verification.verify_slice import SliceItem, verify_slice
from tieredstore.jobs.verification.verify_sums import SHIFT_MIN, SumTable, held_sums
from tieredstore.model.config import StoreConfig

VerifyPlan: TypeAlias = Plan[VerifyItem]
_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """Reads a tier, or the topics that match one of the patterns; changes nothing.

    The keys are compared only where all topics are read and the index is enabled. Index files that
    the broker has not uploaded yet are read where the job is started, if their folder
    (`store_path`) is there.
    """

    config: StoreConfig
    topics: tuple[str, ...] = ()
    split_bytes: int = SPLIT_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.config.with_full_paths())

    @property
    def name(self) -> str:
        return "verify"

    def plan(self) -> VerifyPlan:
        picture = TierPicture.take(self.config, topics=self.topics)
        work: list[tuple[VerifyItem, int]] = list(picture.slice_items(self.split_bytes))
        if self._compares_keys:
            work += picture.index_items()
        item_bytes = [size for _, size in work]
        messages = sum(queue.message_count for queue in picture.queues)
        # Of one item it is an estimate.
        size = picture.byte_count(with_index=self._compares_keys)
        text = f"{len(picture.queues)} queues with {messages} messages, {size} bytes"
        return Plan(
            items=[item for item, _ in work],
            item_bytes=item_bytes,
            counts={
                "queues": len(picture.queues),
                "messages": messages,
                "index_files": len(picture.index),
            },
            byte_counts={"read": size},
            lines=(f"{text} are to be read",),
            facts={"index_has_expired": picture.index_has_expired},
        )

    @property
    def _compares_keys(self) -> bool:
        return self.config.index_enabled and not self.topics

    def work(self, item: VerifyItem) -> Iterable[VerifyRow]:
        if isinstance(item, SliceItem):
            yield verify_slice(self.config, item)
        else:
            yield verify_index(self.config, item)

    def finish(self, plan: VerifyPlan, rows: RowStream[VerifyRow]) -> JobReport:
        findings, sums, counts = Findings(), SumTable(), Counter[str]()
        for row in rows:
            findings.take(row)
            sums.add(row.sums)
            counts.update(row.counts)
        if self._compares_keys and rows.done_count == rows.item_count:
            counts.update(self._compare_keys(plan, sums, findings))
        structure = self._audited()
        found = sorted(chain(findings.found(), structure), key=_order)
        totals = {kind.value: count for kind, count in findings.totals.items() if count}
        for each in structure:
            totals[each.kind] = totals.get(each.kind, 0) + 1
        kinds: dict[str, Json] = dict(sorted(totals.items()))
        read_bytes = counts.pop("bytes", 0)
        return JobReport(
            job=self.name,
            state=rows.state,
            counts={"queues": plan.counts["queues"], **counts},
            byte_counts={"read": read_bytes},
            findings=tuple(found[:FINDINGS_MAX]),
            findings_left_out=findings.left_out + max(0, len(found) - FINDINGS_MAX),
            failures=tuple(rows.failures),
            facts={"kinds": kinds},
            lines=(_summary(counts, kinds),),
        )

    def _compare_keys(self, plan: VerifyPlan, sums: SumTable, findings: Findings) -> dict[str, int]:
        queues = indexed_queues(plan.items)
        index = [item for item in plan.items if isinstance(item, IndexItem)]
        shift = plan.items[0].shift if plan.items else SHIFT_MIN
        uploaded = {item.row.begin_timestamp or 0 for item in index}

        def take(items: NDArray[Any], times: NDArray[np.int64], _: str, __: int) -> None:
            kept = within(items, queues)
            sums.add(held_sums(items[kept], times[kept], shift=shift))

        local = verify_local_index(self.config, uploaded, findings, take)
        table = sums.table()
        comparison = KeyComparison(
            queues,
            shift=shift,
            findings=findings,
            has_expired=bool(plan.facts["index_has_expired"]),
        )
        compared = comparison.compare(table)
        suspects = compared.suspects
        index_bytes = sum({item.row.key: item.row.size for item in index}.values())
        if len(suspects) and comparison.can_be_looked_at(suspects, index_bytes):
            EntryComparison(
                config=self.config,
                compared=compared,
                queues=queues,
                index=index,
                shift=shift,
                findings=findings,
            ).run(comparison)
        else:
            comparison.tell_suspects(suspects)
        return {**compared.counts, "entries": local, "entries_local": local}

    def _audited(self) -> list[VerifyFinding]:
        parts = open_tier(self.config, GivenParts(), read_only=True)
        try:
            report = audit(
                parts.metadata,
                parts.provider,
                self.config,
                parts.runtime,
                published=lambda: published_catalogue(self.config, parts.provider),
            )
            return [_of_audit(each) for each in report.findings]
        finally:
            parts.close()


def _summary(counts: Counter[str], kinds: dict[str, Json]) -> str:
    text = f"read {counts['messages']} messages, {counts['keys']} keys, {counts['entries']} entries"
    if not kinds:
        return f"{text}: nothing is wrong"
    return f"{text}; found: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _of_audit(found: Finding) -> VerifyFinding:
    parts = found.path.split("/")
    is_queue = len(parts) == 3 and parts[2].isdigit()
    return VerifyFinding(
        severity=found.severity,
        kind=found.kind.value,
        where=found.place,
        detail=found.detail,
        topic=parts[1] if is_queue else None,
        queue_id=int(parts[2]) if is_queue else None,
    )


def _order(found: VerifyFinding) -> tuple[int, str, int]:
    return _ORDER[found.severity], found.where, found.position or 0
