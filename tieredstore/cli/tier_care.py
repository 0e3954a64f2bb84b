"""Looking after the tier that was named: opening it so, the rows that are printed, and the end.

What lives here: all of `care` but its arguments. It is imported when a verb runs: help must be
fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from tieredstore.access.audit import AuditKind, AuditReport, audit
from tieredstore.access.queue_upload import ask_to_resume
from tieredstore.access.reader import reconcile
from tieredstore.access.rebuild import (
    NewerCatalogueError,
    RebuildReport,
    rebuild,
    rebuild_beside_published,
)
from tieredstore.access.wiring import published_catalogue, publisher_of
from tieredstore.cli.choice import known_names
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable
from tieredstore.cli.tier import (
    check_broker,
    notes_of_the_library,
    opened_backend,
    opened_provider,
)
from tieredstore.cli.tier_changing import changing, for_writing
from tieredstore.cli.tier_options import TierOptions, config_of
from tieredstore.codec.names import queue_path
from tieredstore.driver.provider import SegmentProvider
from tieredstore.model.config import StoreConfig
from tieredstore.model.findings import Finding, Severity

Row = dict[str, Any]

FINDING_COLUMNS: Final = ("severity", "what", "where", "detail")
FINDING_WIDTHS: Final = (9, 17, 50, 0)


def audited(tier: TierOptions, *, repair: bool) -> AuditReport:
    with ExitStack() as opened:
        backend = opened.enter_context(opened_backend(tier))
        config, provider, runtime = backend.config, backend.provider, backend.runtime
        if repair:
            metadata = opened.enter_context(changing(backend)).metadata
        else:
            metadata = backend.catalogue()
            check_broker(config, metadata)
            reconcile(metadata, provider, [config.broker_name])
        return audit(
            metadata,
            provider,
            config,
            runtime,
            repair=repair,
            published=lambda: published_catalogue(config, provider),
        )


def resumed(tier: TierOptions, topic: str, queue_id: int) -> None:
    with opened_backend(tier) as backend, changing(backend) as change:
        path = queue_path(backend.config.broker_name, topic, queue_id)
        if not ask_to_resume(path, change.metadata):
            text = f"{printable(topic)}/{queue_id} was not stopped; audit shows which queues are"
            raise CommandError(text, ExitCode.NOT_THERE)


def rebuilt(tier: TierOptions) -> RebuildReport:
    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(tier))
        config, runtime, provider = there.config, there.runtime, there.provider
        _check_there_is_data(config, provider)
        metadata = opened.enter_context(for_writing(config, runtime, create=True))
        publisher = publisher_of(config, provider, metadata)
        try:
            if publisher is None:
                return rebuild(metadata, provider, config, runtime)
            return rebuild_beside_published(
                metadata,
                provider,
                config,
                runtime,
                publisher=publisher,
                published=lambda: published_catalogue(config, provider),
            )
        except NewerCatalogueError as error:
            text = f"{config.catalogue_path} is not written over: {error}"
            raise CommandError(printable(text), ExitCode.REFUSED) from error


def certified(tier: TierOptions, *, again: bool) -> Sequence[Finding]:
    """What a backend proved; of a bucket that has failed before, what it failed then."""
    config = config_of(tier)
    if config.provider == "s3":
        from tieredstore.providers.certified import examined
        from tieredstore.providers.object_provider import open_client
        from tieredstore.providers.s3_settings import ObjectStoreSettings

        with (
            notes_of_the_library(),
            closing(open_client(ObjectStoreSettings.from_config(config))) as client,
        ):
            return examined(client, again=again).findings
    with opened_provider(tier) as there:
        return there.provider.probe()


def _check_there_is_data(config: StoreConfig, provider: SegmentProvider) -> None:
    """Before there is a catalogue: an empty one would be made."""
    if next(iter(provider.list(config.broker_name)), None) is not None:
        return
    brokers = {each.path.partition("/")[0] for each in provider.list()}
    name = printable(config.broker_name)
    if not brokers:
        text = f"there is not one segment of the cluster {printable(config.cluster_name)!r}"
        raise CommandError(f"{text}; name its cluster with --cluster", ExitCode.NOT_THERE)
    raise CommandError(
        f"no segment of a broker {name!r}; there are: {known_names(sorted(brokers))}; "
        "name one with --broker",
        ExitCode.NOT_THERE,
    )


def finding_row(finding: Finding) -> Row:
    place = finding.place
    return {
        "kind": finding.kind,
        "severity": finding.severity.value,
        "path": place.path,
        "type": None if place.type is None else place.type.name,
        "base_offset": place.base,
        "detail": finding.detail,
        "repairable": finding.repairable,
        "repaired": finding.repaired,
        "failure": finding.failure,
    }


def finding_cells(finding: Finding) -> tuple[str, ...]:
    detail = finding.detail
    if finding.repaired:
        detail += " (repaired)"
    elif finding.failure:
        detail += f" (not repaired: {finding.failure})"
    return finding.severity.value, finding.kind, finding.where, detail


def summary(report: AuditReport) -> str:
    looked = f"{report.segment_count} segments of {report.queue_count} queues, {report.size} bytes"
    counts = [
        f"{count} {severity.value}"
        for severity in Severity
        if (count := sum(each.severity is severity for each in report.left))
    ]
    return f"{looked}: {', '.join(counts) or 'nothing to tell'}"


def tell_damage(report: AuditReport) -> None:
    """Raise what there is to say, when all of it was shown."""
    if report.damage:
        first = report.damage[0]
        is_stopped = first.kind is AuditKind.STOPPED
        what_to_do = "mend that, then resume it" if is_stopped else "restore it from a copy"
        raise CommandError(
            printable(
                f"{len(report.damage)} found damaged, the first: {first.where}: {first.detail}; "
                f"{what_to_do}"
            ),
            ExitCode.DAMAGE,
        )
    failed = [each for each in report.left if each.failure]
    if failed:
        text = f"{len(failed)} not repaired, the first: {failed[0].where}: {failed[0].failure}"
        raise CommandError(printable(text), ExitCode.REFUSED)


def rebuilt_rows(report: RebuildReport) -> Iterator[Row]:
    """One of all, then one a topic, one a problem and one a note."""
    yield {
        "what": "catalogue",
        "topic_count": len(report.topics),
        "queue_count": report.queue_count,
        "segment_count": report.segment_count,
        "size": report.size,
        "is_index_whole": report.is_index_whole,
    }
    for topic, number in sorted(report.topics.items()):
        is_new = topic in report.new_ids
        yield {"what": "topic", "topic": topic, "topic_id": number, "is_new_id": is_new}
    for problem in report.problems:
        yield {"what": "problem", "detail": problem}
    for note in report.notes:
        yield {"what": "note", "detail": note}


def rebuilt_line(row: Row) -> str:
    if row["what"] == "topic":
        index = "; its keys are indexed again" if row["is_new_id"] else ""
        return printable(f"topic {row['topic']}: id {row['topic_id']}{index}")
    if row["what"] in ("problem", "note"):
        return printable(f"{row['what']}: {row['detail']}")
    return (
        f"{row['topic_count']} topics, {row['queue_count']} queues, "
        f"{row['segment_count']} segments, {row['size']} bytes"
    )


def tell_problems(report: RebuildReport) -> None:
    if report.problems:
        text = f"{len(report.problems)} not sound, the first: {report.problems[0]}"
        raise CommandError(printable(text), ExitCode.DAMAGE)


def check_row(finding: Finding) -> Row:
    return {"check": finding.kind, "passed": not finding.is_damage, "detail": finding.detail}


def tell_failures(findings: Sequence[Finding]) -> None:
    failed = [finding for finding in findings if finding.is_damage]
    if failed:
        text = (
            f"{len(failed)} checks failed, the first: {failed[0].kind}: {failed[0].detail}; a "
            "bucket that failed stays refused until `certify --again` passes"
        )
        raise CommandError(printable(text), ExitCode.REFUSED)
