"""The verbs that look after a tier, and those of its catalogue: `tieredstore catalogue`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.options import (
    DryRun,
    Json,
    Out,
    Shown,
    TableShown,
    TierOptions,
    Topic,
    argument,
    config_of,
    known_names,
    option,
    verb,
)
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    OutputFile,
    Row,
    hint,
    note,
    printable,
    write_line,
    write_row,
)
from tieredstore.cli.progress import command_line
from tieredstore.cli.table import Column, Kind, Table, write_rows
from tieredstore.model.amounts import counted

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.audit import AuditReport
    from tieredstore.access.rebuild import RebuildReport
    from tieredstore.access.upkeep import ExpiredQueue
    from tieredstore.driver.provider import SegmentProvider
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.findings import Finding

app = typer.Typer(rich_markup_mode=None)
catalogue = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="The catalogue of a tier."
)
app.add_typer(catalogue, name="catalogue")


class Trusted(Enum):
    """The store that is right if the two hold different messages."""

    TIER = "tier"
    LOCAL = "local"


_TRUSTED: Final = {
    Trusted.TIER: "the tier's messages stand, and the broker's own are given up",
    Trusted.LOCAL: "the broker's own messages stand, and the tier's queue is deleted",
}


def _detail(row: Row) -> str:
    if row["repaired"]:
        return f"{row['detail']} (repaired)"
    return f"{row['detail']} (not repaired: {row['failure']})" if row["failure"] else row["detail"]


_FINDING_COLUMNS: Final = (
    Column("severity", "severity", Kind.NAME),
    Column("what", "kind", Kind.NAME),
    Column("where", "where", Kind.NAME),
    Column("detail", _detail, Kind.DETAIL),
)
_CHECK_COLUMNS: Final = (
    Column("check", "check", Kind.NAME),
    Column("outcome", lambda row: "passed" if row["passed"] else "FAILED", Kind.NAME),
    Column("what", "detail", Kind.DETAIL),
)
_EXPIRED_COLUMNS: Final = (
    Column("topic/queue", lambda row: f"{row['topic']}/{row['queue_id']}"),
    Column("segments", "segment_count", Kind.NUMBER),
    Column("size", "bytes", Kind.SIZE),
    Column("first offset", "min_offset", Kind.NUMBER),
)
_HOURS_MAX: Final = 1_000_000  # more than a century
_DEFAULT: Final = "default"


@verb(app, "audit --config broker.conf --json")
def audit(
    tier: TierOptions,
    repair: Annotated[
        bool, option("--repair", "Repair what loses no data. No broker may run on this tier.")
    ] = False,
    *,
    shown: TableShown,
) -> None:
    """Compare the catalogue of a tier with its bytes. Without --repair nothing is changed.

    A repair finishes deletes, deletes unneeded segments and leftovers of broken uploads, and adds
    sound bytes to the catalogue. Exit code 4: there is damage.
    """
    report = _audited(tier, repair=repair)
    with Table(_FINDING_COLUMNS, shown) as table:
        for finding in report.findings:
            table.write(_finding_row(finding), where=finding.where)
    if not (shown.json or shown.csv):
        write_line(_summary(report, shown))
        if not repair and any(finding.repairable for finding in report.left):
            words = command_line().with_word("--repair")
            hint(printable(f"next, with no broker running: {words}"))
    _raise_damage(report)


@verb(app, "resume Orders 3 --config broker.conf")
def resume(
    topic: Annotated[str, argument("TOPIC", "The topic.")],
    queue_id: Annotated[int, argument("QUEUE", "The queue id.", min=0)],
    *,
    trusted: Annotated[
        Trusted | None,
        option("--trust", "If the two hold different messages: which one is right."),
    ] = None,
    lose_tier: Annotated[
        bool, option("--lose-tier", "With --trust local: delete the tier's copy of the queue.")
    ] = False,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Have the broker, at its next start, compare a stopped queue with its own messages again.

    The queue continues if both hold the same message, or if the broker has none left to compare;
    otherwise it stays stopped, and the log says why. No broker may run on this tier.

    If the two hold different messages under one number, the broker takes no messages of that queue
    until you decide. With --trust tier it discards its own copy of the queue and continues after
    all numbers that either has given out: messages that only the broker has are lost. With --trust
    local the tier's queue is deleted and uploaded again from the broker's own store: messages that
    only the tier has are lost, so this needs --lose-tier too, and numbers that only the tier has
    given out are given again.
    """
    from tieredstore.access.queue_upload import ask_to_resume, is_history, trust
    from tieredstore.cli.tier import changing, opened_backend
    from tieredstore.codec.names import queue_path

    if lose_tier != (trusted is Trusted.LOCAL):
        text = (
            "--trust local deletes what the tier has of the queue: say so with --lose-tier"
            if trusted is Trusted.LOCAL
            else "--lose-tier goes with --trust local"
        )
        raise CommandError(text, ExitCode.USAGE)
    place = f"{printable(topic)}/{queue_id}"
    with opened_backend(tier) as backend, changing(backend) as change:
        path = queue_path(backend.config.broker_name, topic, queue_id)
        if change.metadata.queue(topic, queue_id) is None:
            raise CommandError(f"the tier has no queue {place}", ExitCode.NOT_THERE)
        if is_history(path, change.metadata):
            text = f"{place} was adopted from another broker: it is only read, and never goes on"
            raise CommandError(text, ExitCode.NOT_THERE)
        if not ask_to_resume(path, change.metadata) and trusted is None:
            text = f"{place} was not stopped; audit shows which queues are"
            raise CommandError(text, ExitCode.NOT_THERE)
        if trusted is not None:
            trust(path, trusted.value, change.metadata)
    row: Row = {"topic": topic, "queue_id": queue_id, "resume": True}
    line = f"{place} is compared at the next start of the broker"
    if trusted is not None:
        row["trust"] = trusted.value
        line += f"; where they differ, {_TRUSTED[trusted]}"
    write_row(row, line, json=json)


@verb(app, "rebuild --config broker.conf")
def rebuild(tier: TierOptions, shown: Shown) -> None:
    """Recover topics, queues, segments, offsets and times from the bucket or folder alone.

    An empty or missing catalogue is filled, an older one brought up to date; any other is refused.
    No segment records how long topics are kept: set it again. Exit code 4: something was damaged.
    """
    with rebuilt(tier) as report:
        for row in _rebuilt_rows(report):
            write_row(row, _rebuilt_line(row, shown), json=shown.json)
    if report.problems:
        text = f"{len(report.problems)} not sound, the first: {report.problems[0]}"
        raise CommandError(printable(text), ExitCode.DAMAGE)
    if not shown.json and not any(log_of_a_bucket(config_of(tier))):
        hint("next: `verify` with the same options reads all of it; then start the broker")


@verb(app, "certify --provider s3 --bucket tier --endpoint http://minio:9000")
def certify(
    tier: TierOptions,
    again: Annotated[bool, option("--again", "Test a bucket again that failed before.")] = False,
    *,
    shown: TableShown,
) -> None:
    """Test that a bucket or a directory guarantees what a tier relies on, with objects of its own.

    Writes, reads, lists and deletes. Exit code 5: do not write there. A failure is recorded in the
    bucket and refuses every writer: without --again it is not tested a second time.
    """
    rows = [
        {"check": finding.kind, "passed": not finding.is_damage, "detail": finding.detail}
        for finding in _certified(tier, again=again)
    ]
    write_rows(rows, _CHECK_COLUMNS, shown)
    failed = [row for row in rows if not row["passed"]]
    if failed:
        first = f"{failed[0]['check']}: {failed[0]['detail']}"
        text = (
            f"{counted(len(failed), 'check')} failed, the first: {first};"
            " a bucket that failed stays refused until `certify --again` passes"
        )
        raise CommandError(printable(text), ExitCode.REFUSED)


@verb(app, "create-bucket --provider s3 --bucket tiers --endpoint http://minio:9000")
def create_bucket(tier: TierOptions, json: Json = False) -> None:
    """Create a private bucket for a tier, with a rule that removes abandoned uploads.

    An existing bucket of yours only gets the rule. Next, run certify.
    """
    from tieredstore.cli.tier import library_at_work
    from tieredstore.providers.s3_admin import ABORT_DAYS, create_bucket
    from tieredstore.providers.s3_settings import ObjectStoreSettings

    config = config_of(tier)
    if config.provider != "s3":
        text = f"a tier of the provider {config.provider!r} has no bucket; name one of s3"
        raise CommandError(printable(text), ExitCode.USAGE)
    settings = ObjectStoreSettings.from_config(config)
    with library_at_work():
        has_rule = create_bucket(settings)
    row: Row = {"bucket": settings.bucket, "abort_days": ABORT_DAYS if has_rule else None}
    cleared = (
        f"abandoned uploads go after {ABORT_DAYS} days"
        if has_rule
        else "the store has no rules, so run audit --repair now and then for abandoned uploads"
    )
    write_row(row, f"the bucket {settings.bucket} is there; {cleared}", json=json)


@verb(app, "expire --dry-run --config broker.conf")
def expire(
    dry_run: DryRun = False,
    *,
    tier: TierOptions,
    shown: TableShown,
) -> None:
    """Delete segments all of whose messages are older than the reserve hours of their topic.

    A broker does this by itself: use this for a tier without a broker. It refuses one whose broker
    runs on this machine; a broker that writes to the same bucket from elsewhere is fenced, and
    stops uploading. Files of the key index go when all of their messages are older than any topic
    is kept. A bucket's objects go 15 minutes later, when a command or broker next writes to it.
    Exit code 4: a queue could not be handled.
    """
    segments = size = 0
    failures: list[str] = []
    with Table(_EXPIRED_COLUMNS, shown) as table:
        for queue in _expired_queues(tier, dry_run=dry_run):
            if queue.failure is not None:
                failures.append(f"{queue.key.topic}/{queue.key.queue_id}: {queue.failure}")
            if queue.expired is not None:
                segments += queue.expired.segment_count
                size += queue.expired.dropped_bytes
            if queue.expired is not None or shown.json:
                table.write(_expired_row(queue, dry_run=dry_run))
    if not (shown.json or shown.csv):
        done = "would go" if dry_run else "went"
        write_line(f"{counted(segments, 'segment')} with {shown.size(size)} {done}")
        if dry_run and segments:
            hint("next: run the same without --dry-run")
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise CommandError(f"not looked after: {failures[0]}{more}", ExitCode.DAMAGE)


@verb(
    catalogue,
    "catalogue show --config broker.conf --catalogue published",
    "Show its source and its contents.",
)
def show(tier: TierOptions, shown: Shown) -> None:
    """Show the catalogue that the other verbs would read: its file, the copy that the broker
    published, or in a bucket the broker's log.

    A published copy has a generation: the highest is the newest. It lacks segments that are
    younger, but messages added to the last segments since are found.
    """
    row = _shown(tier)
    write_row(row, *_shown_lines(row, shown), json=shown.json)


@verb(
    catalogue,
    "catalogue snapshot --config broker.conf",
    "Publish the catalogue now, or write it to a file.",
)
def snapshot(
    tier: TierOptions,
    out: Out = None,
    json: Json = False,
) -> None:
    """Publish the catalogue next to the tier, for readers elsewhere. A broker does so by itself: no
    broker may run on this tier. In a bucket the log is the catalogue, and nothing is published.

    With --out nothing is published: the catalogue that the other verbs would read is written to a
    new file, which a RocketMQ broker can open.
    """
    if out is None:
        row = _published(tier)
        line = f"generation {row['generation']} is in {row['place']}"
    else:
        target = OutputFile("--out", out, must_be_new=True)
        target.check(json=json)
        row = _written(tier, target)
        if target.is_stdout:
            return
        line = f"{row['place']}: {counted(row['size'], 'byte')}"
    write_row(row, line, json=json)


def _hours(text: str) -> int:
    """Hours; 0 for the word `default`, as 0 means the store's hours to RocketMQ too."""
    if text == _DEFAULT:
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _HOURS_MAX):
        raise typer.BadParameter(f"want 1 to {_HOURS_MAX}, or {_DEFAULT}, not {text!r:.60}")
    return int(text)


@verb(
    catalogue,
    "catalogue reserve Orders 720 --config broker.conf",
    "Set how long a topic is kept.",
)
def reserve(
    topic: Topic,
    hours: Annotated[
        int, argument("HOURS", "At least 1; or `default`: the store's setting.", parser=_hours)
    ],
    *,
    tier: TierOptions,
    json: Json = False,
) -> None:
    """Give a topic reserve hours of its own, or none. RocketMQ takes them from the topic's
    attribute reserve.time.

    This writes the row of the catalogue and updates the published copy: no broker may run on this
    tier. Messages that have already expired stay gone.
    """
    row = _reserved(tier, topic, hours or None)
    default = ", as the store's settings say" if row["reserve_hours_is_default"] else ""
    number = row["generation"]
    published = "" if number is None else f"; published as generation {number}"
    line = f"{topic} is kept {counted(row['reserve_hours'], 'hour')}{default}{published}"
    write_row(row, line, json=json)


def _audited(tier: TierOptions, *, repair: bool) -> AuditReport:
    from tieredstore.access.audit import audit
    from tieredstore.access.reader import reconcile
    from tieredstore.access.wiring import published_catalogue
    from tieredstore.cli.tier import changing, check_broker, opened_backend

    with ExitStack() as opened:
        backend = opened.enter_context(opened_backend(tier))
        config, provider, runtime = backend.config, backend.provider, backend.runtime
        if repair:
            change = opened.enter_context(changing(backend))
            catalogue = change.metadata
            if change.publisher is not None:  # before the repair deletes anything published
                change.publisher.publish()
        else:
            catalogue = backend.catalogue()
            check_broker(config, catalogue)
            reconcile(catalogue, provider, [config.broker_name])
        return audit(
            catalogue,
            provider,
            config,
            runtime,
            repair=repair,
            published=lambda: published_catalogue(config, provider),
        )


def _finding_row(finding: Finding) -> Row:
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


def _summary(report: AuditReport, shown: Shown) -> str:
    from tieredstore.model.findings import Severity

    looked = (
        f"{counted(report.segment_count, 'segment')} of {counted(report.queue_count, 'queue')}, "
        f"{shown.size(report.size)}"
    )
    counts = [
        f"{count:,} {severity.value}"
        for severity in Severity
        if (count := sum(finding.severity is severity for finding in report.left))
    ]
    return f"{looked}: {', '.join(counts) or 'nothing to tell'}"


def _raise_damage(report: AuditReport) -> None:
    """Called after everything was shown."""
    from tieredstore.access.audit import AuditKind

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
    failed = [finding for finding in report.left if finding.failure]
    if failed:
        text = f"{len(failed)} not repaired, the first: {failed[0].where}: {failed[0].failure}"
        raise CommandError(printable(text), ExitCode.REFUSED)


@contextmanager
def rebuilt(tier: TierOptions) -> Iterator[RebuildReport]:
    """What was rebuilt. If the block succeeds, what was lost with a log counts as told."""
    from tieredstore.access.rebuild import NewerCatalogueError, rebuild, rebuild_beside_published
    from tieredstore.access.wiring import published_catalogue, publisher_of
    from tieredstore.cli.tier import for_writing, opened_provider

    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(tier))
        config, runtime, provider = there.config, there.runtime, there.provider
        check_there_is_data(config, provider)
        catalogue = opened.enter_context(for_writing(there, create=True))
        publisher = publisher_of(config, provider, catalogue)
        try:
            if publisher is None:
                report = rebuild(catalogue, provider, config, runtime, takes_in=True)
            else:
                report = rebuild_beside_published(
                    catalogue,
                    provider,
                    config,
                    runtime,
                    publisher=publisher,
                    published=lambda: published_catalogue(config, provider),
                )
        except NewerCatalogueError as error:
            text = f"{catalogue.facts.place} is not written over: {error}"
            raise CommandError(printable(text), ExitCode.REFUSED) from error
        yield replace(report, notes=(*report.notes, *log_of_a_bucket(config)))
        report.told()


def log_of_a_bucket(config: StoreConfig) -> Iterator[str]:
    """A note if another tool has copied the log of a bucket into this directory."""
    from tieredstore.roundlog.layout import ObjectLayout

    if config.provider != "posix":
        return
    log = Path(config.path, ObjectLayout(config.cluster_name).rounds(config.broker_name))
    if log.is_dir():
        yield (
            f"{log} came from a bucket, and a directory cannot use it: segments that only this log"
            " knows are missing here; `tieredstore migrate` copies them from the bucket"
        )


def check_there_is_data(config: StoreConfig, provider: SegmentProvider) -> None:
    """Called before a catalogue is made: without data it would be an empty one."""
    from tieredstore.access.wiring import has_tier

    if has_tier(config, provider):
        return
    if provider.damage(config.broker_name):
        return  # the log was lost, or the layout is one that the claim will refuse
    brokers = {found.path.partition("/")[0] for found in provider.list()}
    if not brokers:
        text = f"there is not one segment of the cluster {printable(config.cluster_name)!r}"
        raise CommandError(f"{text}; name its cluster with --cluster", ExitCode.NOT_THERE)
    raise CommandError(
        f"no segment of a broker {printable(config.broker_name)!r}; there are: "
        f"{known_names(sorted(brokers))}; name one with --broker",
        ExitCode.NOT_THERE,
    )


def _rebuilt_rows(report: RebuildReport) -> Iterator[Row]:
    """One row for everything, then one per topic, per problem and per note."""
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
    for text in report.notes:
        yield {"what": "note", "detail": text}


def _rebuilt_line(row: Row, shown: Shown) -> str:
    if row["what"] == "topic":
        index = "; its keys are indexed again" if row["is_new_id"] else ""
        return f"topic {row['topic']}: id {row['topic_id']}{index}"
    if row["what"] in ("problem", "note"):
        return f"{row['what']}: {row['detail']}"
    return (
        f"{counted(row['topic_count'], 'topic')}, {counted(row['queue_count'], 'queue')}, "
        f"{counted(row['segment_count'], 'segment')}, {shown.size(row['size'])}"
    )


def _certified(tier: TierOptions, *, again: bool) -> Sequence[Finding]:
    """What a backend proved; for a bucket that has failed before, the recorded failures."""
    from tieredstore.cli.tier import library_at_work, opened_provider

    config = config_of(tier)
    if config.provider == "s3":
        from tieredstore.providers.certified import examined
        from tieredstore.providers.object_provider import open_client
        from tieredstore.providers.s3_settings import ObjectStoreSettings

        with (
            library_at_work(),
            closing(open_client(ObjectStoreSettings.from_config(config))) as client,
        ):
            return examined(client, again=again).findings
    with opened_provider(tier) as there:
        return there.provider.probe()


def _expired_queues(tier: TierOptions, *, dry_run: bool) -> Iterator[ExpiredQueue]:
    """Expire the queues one by one, and yield what was deleted of each."""
    from tieredstore.access.upkeep import expire_tier
    from tieredstore.access.wiring import open_tier
    from tieredstore.cli.tier import (
        check_answers,
        check_broker,
        checked_publisher,
        locked,
        opened_backend,
    )
    from tieredstore.flat.append_file import PendingDeletions
    from tieredstore.index.contract import NoIndex
    from tieredstore.index.store import IndexStore

    with ExitStack() as opened:
        backend = opened.enter_context(opened_backend(tier))
        config, provider, runtime = backend.config, backend.provider, backend.runtime
        if dry_run:
            catalogue = backend.catalogue()
            check_broker(config, catalogue)
        else:
            catalogue = opened.enter_context(locked(backend))
            # Raises if another writer publishes; the tier itself publishes when it is closed.
            checked_publisher(backend, catalogue)
        opened_tier = open_tier(
            config,
            runtime=runtime,
            provider=provider,
            metadata=catalogue,
            index=NoIndex(),
            read_only=dry_run,
        )
        opened.callback(opened_tier.close)
        opened_tier.load()
        now_ms = runtime.clock.now_ms()
        for queue in expire_tier(
            opened_tier.files, catalogue, config, now_ms=now_ms, dry_run=dry_run
        ):
            if queue.failure is not None:
                check_answers(config, provider)
            yield queue
        if not dry_run:
            IndexStore(
                config,
                provider=provider,
                metadata=catalogue,
                runtime=runtime,
                publish=opened_tier.publishing.announces,
            ).expire_unopened()
            left = PendingDeletions(provider, catalogue).count()
            if left:
                unused = counted(left, "unused segment")
                note(f"the bytes of {unused} are still there: `audit --repair` deletes them")


def _expired_row(queue: ExpiredQueue, *, dry_run: bool) -> Row:
    row: Row = {"topic": queue.key.topic, "queue_id": queue.key.queue_id}
    if queue.expired is not None:
        row |= {
            "segment_count": queue.expired.segment_count,
            "bytes": queue.expired.dropped_bytes,
            "min_offset": queue.expired.min_offset,
            "dry_run": dry_run,
        }
    return row | {"failure": queue.failure}


def _shown(tier: TierOptions) -> Row:
    from tieredstore.cli.tier import opened_backend
    from tieredstore.model.values import SegmentType

    with opened_backend(tier) as backend:
        catalogue = backend.catalogue()
        facts = catalogue.facts
        segments = {kind.name: catalogue.segments(None, kind) for kind in SegmentType}
        return {
            "source": facts.source,
            "place": facts.place,
            "generation": facts.generation,
            "epoch": facts.epoch,
            "writer": facts.writer,
            "written_ms": facts.written_ms,
            "topic_count": len(catalogue.topics()),
            "queue_count": len(catalogue.queues()),
            "segment_counts": {name: len(rows) for name, rows in segments.items()},
            "size": sum(row.size for rows in segments.values() for row in rows),
        }


def _shown_lines(row: Row, shown: Shown) -> Iterator[str]:
    yield f"{row['source']}: {row['place']}"
    if row["generation"] is not None:
        yield (
            f"generation {row['generation']} of {shown.time(row['written_ms'])}, by writer "
            f"{row['epoch']} ({row['writer']})"
        )
    counts = ", ".join(f"{count:,} {name}" for name, count in row["segment_counts"].items())
    yield (
        f"{counted(row['topic_count'], 'topic')}, {counted(row['queue_count'], 'queue')}, "
        f"{shown.size(row['size'])}"
    )
    yield f"segments: {counts}"


def _written(tier: TierOptions, target: OutputFile) -> Row:
    from tieredstore.cli.tier import opened_backend

    with opened_backend(tier) as backend:
        data = backend.catalogue().snapshot_bytes()
    target.write(data)
    return {"generation": None, "place": target.name, "size": len(data)}


def _published(tier: TierOptions) -> Row:
    from tieredstore.access.wiring import keeps_catalogue, publisher_of
    from tieredstore.cli.tier import check_broker, check_cluster, for_writing, opened_provider
    from tieredstore.driver.metadata import StaleCatalogueError

    with ExitStack() as opened:
        there = opened.enter_context(opened_provider(tier))
        config, provider = there.config, there.provider
        if keeps_catalogue(config, provider):
            text = (
                "the catalogue of this tier lies with its bytes: readers elsewhere see it as it is"
            )
            raise CommandError(text, ExitCode.USAGE)
        catalogue = opened.enter_context(for_writing(there))
        check_cluster(config, catalogue)
        check_broker(config, catalogue)
        publisher = publisher_of(config, provider, catalogue)
        if publisher is None:
            raise CommandError(
                "catalogues of this tier are not published; see publish_interval_ms", ExitCode.USAGE
            )
        try:
            generation = publisher.publish()
        except StaleCatalogueError as error:
            raise CommandError(printable(str(error)), ExitCode.REFUSED) from error
        if generation is None:
            raise CommandError("there is nothing in the catalogue", ExitCode.NOT_THERE)
        generations = provider.generations(config.broker_name)
        place = "" if generations is None else generations.describe()
        return {"generation": generation, "place": place, "size": None}


def _reserved(tier: TierOptions, topic: str, hours: int | None) -> Row:
    """Write the topic's row; `hours` None: the store's own."""
    from tieredstore.cli.tier import changing, opened_backend

    with opened_backend(tier) as backend:
        with changing(backend) as change:
            catalogue = change.metadata
            before = catalogue.topic(topic)
            if before is None:
                names = known_names(sorted(record.topic for record in catalogue.topics()))
                text = f"no topic {printable(topic)!r} is in this tier; there are: {names}"
                raise CommandError(text, ExitCode.NOT_THERE)
            catalogue.put(replace(before, reserve_hours=hours))
        return {
            "topic": topic,
            "reserve_hours": backend.config.reserve_hours if hours is None else hours,
            "reserve_hours_is_default": hours is None,
            "reserve_hours_before": before.reserve_hours,
            "generation": change.generation,
        }
