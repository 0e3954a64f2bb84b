"""Is a tier whole? Its catalogue is held against its bytes, and what is amiss is named.

What lives here: `audit`. Looking is the default and changes nothing. What a repair does is in
`audit_repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tieredstore.access.care.audit_facts import TierFacts
from tieredstore.access.care.audit_published import (
    missing_findings,
    published_findings,
    unusable_finding,
)
from tieredstore.access.care.audit_repair import repaired
from tieredstore.access.care.audit_report import AuditReport, Finding, FindingKind, Severity
from tieredstore.access.care.audit_segments import (
    catalogue_findings,
    orphan_findings,
    segment_findings,
)
from tieredstore.access.care.audit_units import unit_findings
from tieredstore.access.upload.agreement import STOPPED_QUEUE, is_asked_to_resume, is_history
from tieredstore.codec.names import INDEX_TOPIC
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import Leftover, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError


def audit(
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
    *,
    repair: bool = False,
    published: Callable[[], MetadataStore | None] | None = None,
) -> AuditReport:
    """Look at all segments of the configured broker: one listing, and a few small reads a queue.

    Beside a live writer it may be run without `repair`. A repair needs the catalogue open for
    writing, whose lock keeps every writer out, and does only what loses nothing: it finishes
    deletes, deletes segments that nobody can miss and what was left of uploads, and lets the
    catalogue know of bytes that are sound. `published` opens the copy for readers elsewhere, to be
    held against the catalogue. Raises MetadataError, and BackendError where the backend cannot be
    listed.
    """
    if repair:
        metadata.apply([])  # refused here, before anything is done, where it is read only
    broker = config.broker_name
    copied = _published(metadata, published, broker)
    facts = TierFacts.gather(metadata, provider, broker)
    findings = [*segment_findings(facts), *catalogue_findings(facts, metadata, broker)]
    broken = {each.path for each in findings if each.severity is Severity.DAMAGE}
    paths = [path for path in dict.fromkeys(path for path, _ in facts.files) if not _index(path)]
    whole = [path for path in paths if path not in broken]
    reads = [runtime.fetch.submit(unit_findings, facts, provider, path) for path in whole]
    for read in reads:
        findings += read.result()
    findings += orphan_findings(facts)
    findings += _noted(facts, metadata, broker)
    findings += copied()
    leftovers = provider.leftovers(broker)
    findings += map(_left_over, leftovers)
    if repair:
        findings = repaired(findings, leftovers, metadata, provider, config, runtime)
    return AuditReport(
        broker=broker,
        findings=tuple(sorted(findings, key=_order)),
        queue_count=len(paths),
        segment_count=sum(map(len, facts.files.values())),
        size=sum(row.size for rows in facts.files.values() for row in rows),
    )


def _published(
    metadata: MetadataStore,
    published: Callable[[], MetadataStore | None] | None,
    broker: str,
) -> Callable[[], list[Finding]]:
    """Reads the copy now; what is called later holds it against the catalogue as it is then."""
    if published is None or metadata.facts.copy:
        return list
    try:
        copy = published()
    except MetadataError as error:
        unusable = unusable_finding(error, broker)
        return lambda: [unusable]

    def findings() -> list[Finding]:
        if copy is None:
            return list(missing_findings(metadata, broker))
        with copy:
            return list(published_findings(metadata, copy, broker))

    return findings


def _noted(facts: TierFacts, metadata: MetadataStore, broker: str) -> Iterator[Finding]:
    for path, note in metadata.notes(STOPPED_QUEUE).items():
        if path.startswith(f"{broker}/"):
            reason = str(note.get("reason", "")) if isinstance(note, dict) else ""
            asked = "; is compared at the next start" if is_asked_to_resume(path, metadata) else ""
            is_adopted = is_history(path, metadata)
            detail = reason if is_adopted else f"takes no more: {reason}{asked}"
            kind = FindingKind.ADOPTED if is_adopted else FindingKind.STOPPED
            yield Finding(kind=kind, path=path, detail=detail)
    for key in facts.doomed:
        yield Finding(
            kind=FindingKind.DOOMED,
            path=key,
            detail="no longer used and still to be deleted",
            repairable=True,
        )


def _left_over(found: Leftover) -> Finding:
    kind = FindingKind(found.kind)
    detail = f"{found.size} bytes that never count" if found.size else "an upload without an end"
    if kind is FindingKind.STAGED:
        detail = f"{found.size} bytes that a job staged: it has not ended, or was cut short"
    return Finding(kind=kind, path=found.name, detail=detail, repairable=True)


def _index(path: str) -> bool:
    return path.split("/")[1] == INDEX_TOPIC


def _order(finding: Finding) -> tuple[str, int, int, str]:
    kind = -1 if finding.type is None else finding.type.value
    return finding.path, kind, finding.base or 0, finding.kind.value
