"""A bulk load from its begin to its commit: what the driver does around the tasks that stage.

What lives here: `begin_load`, `commit_load` and `abort_load`. Staging is in `load_stage`, planning
in `load_plan`, writing in `load_write`, the key index in `load_index`.

What a crash leaves behind, and who removes it:

    | crash                 | what is there                     | removed by                       |
    | --------------------- | --------------------------------- | -------------------------------- |
    | while tasks stage     | staged objects                    | the next load; a repairing audit |
    | while segments are    | segments that the catalogue does  | whoever opens the tier to write; |
    | made                  | not name and has noted as doomed  | and the staged objects as above  |
    | behind the one change | staged objects; all messages once | as above                         |
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from tieredstore.codec.names import index_queue_path, queue_path
from tieredstore.driver.metadata import Change, Put, PutNote
from tieredstore.flat import doomed
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.jobs.job import no_progress
from tieredstore.jobs.loading.load_columns import LoadRefusedError
from tieredstore.jobs.loading.load_index import make_index
from tieredstore.jobs.loading.load_plan import LoadPlan, NewSegment, QueueTarget, plan_load
from tieredstore.jobs.loading.load_stage import FOLDER, StagedPart, run_folder
from tieredstore.jobs.loading.load_tier import OwnedTier, owned_tier
from tieredstore.jobs.loading.load_write import WriteSegments, WrittenSegment
from tieredstore.jobs.local_engine import LocalEngine
from tieredstore.model.catalogue import QueueRecord, SegmentRecord
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

LOADED: Final = "load"  # notes of loads that have an id: when, and how many messages
THREADS: Final = 4  # segments that are made at a time

log = log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was loaded."""

    message_count: int = 0
    log_bytes: int = 0
    queue_count: int = 0
    key_count: int = 0


def begin_load(config: StoreConfig) -> None:
    """Refused where somebody writes the tier: MetadataError.

    What an earlier load left behind is removed. One that is still under way loses what it has
    staged, and is refused when it commits.
    """
    with owned_tier(config, threads=1) as tier:
        if config.index_enabled:
            tier.check_index_sizes()
        doomed.finish(tier.provider, tier.metadata)
        tier.remove_staged(FOLDER)


def abort_load(config: StoreConfig, run_id: str) -> None:
    """Remove what was staged; the tier is as it was."""
    with owned_tier(config, threads=1) as tier:
        tier.remove_staged(run_folder(run_id))


def commit_load(
    config: StoreConfig,
    run_id: str,
    parts: Sequence[StagedPart],
    *,
    index: bool = True,
    load_id: str | None = None,
) -> LoadReport:
    """Make the messages of these parts, one of each partition, part of the tier: all or none.

    Offsets within a queue follow the order within a partition, and then the partitions' numbers.
    A load with an id is made once: the catalogue remembers it, and a second one with that id adds
    nothing, whether or not its caller ever learned of the first.
    Raises LoadRefusedError, MetadataError, BackendError; then nothing was loaded, but for a
    MetadataError in the last step, where only the catalogue itself can tell.
    """
    with owned_tier(config, threads=THREADS) as tier:
        report = LoadReport()
        if load_id is not None and tier.metadata.note(LOADED, load_id) is not None:
            log.warning("load %s has come to its end before: nothing is added", load_id)
        elif any(part.portions for part in parts):
            index = index and config.index_enabled
            report = _Commit(tier, run_id, index=index, load_id=load_id).done(parts)
        tier.settle(run_folder(run_id))
    log.info("%d messages of %d queues were loaded", report.message_count, report.queue_count)
    return report


class _Commit:
    """One commit, step by step."""

    def __init__(self, tier: OwnedTier, run_id: str, *, index: bool, load_id: str | None) -> None:
        self._tier = tier
        self._config = tier.config
        self._folder = run_folder(run_id)
        self._index = index
        self._load_id = load_id

    def done(self, parts: Sequence[StagedPart]) -> LoadReport:
        tier = self._tier
        self._check_staged(parts)
        if doomed.finish(tier.provider, tier.metadata):
            raise BackendUnavailableError(
                self._config.broker_name, "load", "what was deleted before is still there"
            )
        plan = plan_load(parts, self._config, tier.scratch, self._target)
        paths = [each.path for each in plan.targets]
        with tier.installing([*paths, index_queue_path(self._config.broker_name)]):
            now = tier.runtime.clock.now_ms()
            tier.announce([each.row(now_ms=now) for each in (*plan.logs, *plan.units)])
            # The logs first: at no time do units name bytes that are not there.
            logs = self._written(plan.logs, keys_folder=self._folder if self._index else None)
            units = self._written(plan.units)
            runs = [run for each in logs for run in each.runs]
            keys = make_index(tier, plan, runs) if self._index else []
            rows = [each.row for each in (*logs, *units)]
            tier.metadata.apply([*self._changes(plan, rows), *keys])
        return LoadReport(
            message_count=plan.message_count,
            log_bytes=sum(each.size for each in plan.logs),
            queue_count=len(plan.targets),
            key_count=sum(run.count for run in runs),
        )

    def _check_staged(self, parts: Sequence[StagedPart]) -> None:
        wanted = {portion.name for part in parts for portion in part.portions}
        missing = wanted - {each.name for each in self._tier.scratch.listed(self._folder)}
        if missing:
            raise LoadRefusedError(
                f"{len(missing)} staged objects of this load are gone: another load into "
                f"{self._config.broker_name} has begun since; run this one again"
            )

    def _target(self, key: QueueKey) -> QueueTarget:
        """Where the queue ends, after asking the backend; one with a problem takes nothing."""
        tier, config = self._tier, self._config
        path = queue_path(config.broker_name, *key)
        record = tier.metadata.queue(*key)
        topic = tier.metadata.add_topic(key.topic)
        rows = tier.metadata.segments(path)
        if not rows:
            if any(True for _ in tier.provider.list(path)):
                raise LoadRefusedError(
                    f"{path}: there are segments that the catalogue does not know: rebuild it first"
                )
            return QueueTarget(
                key=key,
                path=path,
                topic_id=topic.topic_id,
                is_new=True,
                queue_offset=0,
                log_offset=0,
            )
        file = FlatMessageFile(
            record or _new_record(config, key, 0),
            topic,
            config,
            path=path,
            provider=tier.provider,
            metadata=tier.metadata,
            clock=tier.runtime.clock,
        )
        recover(file, tier.metadata, tier.runtime.clock)
        try:
            if file.problem is not None:
                raise LoadRefusedError(f"{path} takes nothing more: {file.problem}")
            if file.unconfirmed_from is not None:
                raise LoadRefusedError(
                    f"{path}: from message {file.unconfirmed_from} on its broker has to compare "
                    "what is there with its own; start it once"
                )
            return QueueTarget(
                key=key,
                path=path,
                topic_id=topic.topic_id,
                is_new=False,
                queue_offset=file.commit_offset,
                log_offset=file.log.commit_offset,
            )
        finally:
            file.close()

    def _written(
        self, segments: Sequence[NewSegment], *, keys_folder: str | None = None
    ) -> list[WrittenSegment]:
        """All of them, or the first error."""
        job = WriteSegments(tier=self._tier, segments=list(segments), keys_folder=keys_folder)
        written: list[WrittenSegment] = []
        with ExitStack() as opened:
            engine = opened.enter_context(LocalEngine(threads=THREADS))
            results = engine.results(job, job.plan(), on_progress=no_progress)
            for result in opened.enter_context(closing(results)):
                if result.failure is not None:
                    raise LoadRefusedError(f"nothing was loaded: {result.failure.text}")
                written += result.rows
        return written

    def _changes(self, plan: LoadPlan, rows: Sequence[SegmentRecord]) -> list[Change]:
        now = self._tier.runtime.clock.now_ms()
        new = [
            Put(_new_record(self._config, target.key, now))
            for target in plan.targets
            if self._tier.metadata.queue(*target.key) is None
        ]
        changes = [*new, *map(Put, rows), *doomed.forgive(rows)]
        if self._load_id is not None:
            changes.append(PutNote(LOADED, self._load_id, [now, plan.message_count]))
        return changes


def _new_record(config: StoreConfig, key: QueueKey, now_ms: int) -> QueueRecord:
    return QueueRecord(
        broker_name=config.broker_name,
        topic=key.topic,
        queue_id=key.queue_id,
        update_timestamp=now_ms,
    )
