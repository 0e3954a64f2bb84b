"""The key index of what is being loaded: files of their own, installed together with the messages.

What lives here: `make_index`. The order of the keys is that of a reindex.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tieredstore.codec.names import index_queue_path
from tieredstore.driver.metadata import Change, Put
from tieredstore.index.uploaded_table import first_row_below
from tieredstore.index.watermarks import QueueId, Watermarks
from tieredstore.jobs.loading.load_plan import LoadPlan
from tieredstore.jobs.loading.load_tier import OwnedTier
from tieredstore.jobs.reindexing.reindex_cuts import file_plans
from tieredstore.jobs.reindexing.reindex_files import made_file
from tieredstore.jobs.reindexing.reindex_install import (
    begin_timestamps,
    begins_in_use,
    index_changes,
    next_base,
)
from tieredstore.jobs.reindexing.reindex_merge import merged
from tieredstore.jobs.reindexing.reindex_runs import KeyRun, in_order
from tieredstore.model.catalogue import SegmentRecord
from tieredstore.model.values import SegmentType


def make_index(tier: OwnedTier, plan: LoadPlan, runs: Sequence[KeyRun]) -> list[Change]:
    """Upload files with these keys, one after the other; what the catalogue is to say of them.

    A queue that was not indexed up to where the load begins is still taken to be indexed only up
    to there: a broker that is started then puts all that follows, and messages that it finds twice
    are shown once.
    """
    path = index_queue_path(tier.config.broker_name)
    ready = in_order(runs)
    files = list(file_plans(tier.scratch, ready, items_max=tier.config.index_item_count - 1))
    begins = begin_timestamps([each.first_time for each in files], begins_in_use(tier))
    rows: list[SegmentRecord] = []
    base = next_base(tier)
    for file, begin in zip(files, begins, strict=True):
        columns = merged(tier.scratch, file.parts, tier.runtime)
        with made_file(tier.config, columns, begin_timestamp=begin) as made:
            row = SegmentRecord(
                path=path,
                type=SegmentType.INDEX,
                base_offset=base,
                create_timestamp=tier.runtime.clock.now_ms(),
                begin_timestamp=begin,
                end_timestamp=made.end_timestamp,
            )
            tier.announce([row])
            with tier.provider.open(row.path, row.type, row.base_offset) as segment:
                size = tier.provider.create(segment, made.blocks())
        rows.append(replace(row, size=size))
        base += size
    adopted, ends = _ends(tier, plan)
    present = tier.metadata.segments(path, SegmentType.INDEX)
    first = first_row_below([*present, *rows]) if present else None
    lowered = [] if first is None else [Put(first)]
    return [*adopted, *index_changes(tier, rows, ends), *lowered]


def _ends(tier: OwnedTier, plan: LoadPlan) -> tuple[list[Change], Mapping[QueueId, int]]:
    """Up to where the index will have queues; and, of an index that somebody else made, that it
    has what the catalogue knows."""
    config = tier.config
    watermarks = Watermarks(tier.metadata, config.broker_name)
    is_known = tier.check_index_sizes()
    path = index_queue_path(config.broker_name)
    is_foreign = not is_known and bool(tier.metadata.segments(path, SegmentType.INDEX))
    ends = {}
    for target in plan.targets:
        queue = QueueId(target.topic_id, target.key.queue_id)
        held = watermarks.of_queue(target.key.topic, queue)
        if target.is_new or is_foreign or held >= target.queue_offset:
            ends[queue] = plan.ends[target.key]
    now = tier.runtime.clock.now_ms()
    return watermarks.adopted(now_ms=now) if is_foreign else [], ends
