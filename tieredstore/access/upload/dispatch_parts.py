"""The parts of a dispatcher, put together.

What lives here: which part knows which. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.access.index_protocol import Index
from tieredstore.access.upload.batches import Batches
from tieredstore.access.upload.index_feed import IndexFeed
from tieredstore.access.upload.pending_counts import PendingCounts
from tieredstore.access.upload.queue_chores import QueueChores
from tieredstore.access.upload.queue_claims import QueueClaims
from tieredstore.access.upload.queue_rules import QueueRules
from tieredstore.access.upload.queue_walk import QueueWalk
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.rounds import Rounds
from tieredstore.access.upload.topic_filter import TopicFilter
from tieredstore.access.upload.upload_budget import UploadBudget
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.metrics import Metrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.file_store import FlatFileStore
from tieredstore.model.config import StoreConfig


class DispatchParts:
    """What a dispatcher is made of; `ended` is told of each queue whose work has ended."""

    def __init__(
        self,
        store: MessageStore,
        files: FlatFileStore,
        provider: SegmentProvider,
        metadata: MetadataStore,
        index: Index,
        config: StoreConfig,
        runtime: Runtime,
        metrics: Metrics,
        *,
        topic_filter: TopicFilter | None = None,
        ended: Callable[[QueueWork], None],
    ) -> None:
        clock = runtime.clock
        self.filter = topic_filter or TopicFilter(config)
        self.budget = UploadBudget(
            bytes_max=config.dispatch_buffer_bytes, uploads_max=config.pending_count_max // 4
        )
        self.claims = QueueClaims()
        self.pending = PendingCounts(
            full_count=config.group_commit_count,
            full_bytes=config.group_commit_bytes,
            rejects=self.filter.rejects,
        )
        feed = IndexFeed(index, self.budget, config)
        chores = QueueChores(store, files, metadata, feed, self.budget, config=config, clock=clock)
        rules = QueueRules(store, chores, self.pending, self.filter, config=config, clock=clock)

        def upload_ended(work: QueueWork) -> None:
            self.budget.end_upload()
            ended(work)

        rounds = Rounds(
            files,
            provider,
            metadata,
            feed,
            self.budget,
            runtime=runtime,
            metrics=metrics,
            ended=upload_ended,
        )
        self.walk = QueueWalk(
            store,
            rules,
            chores,
            Batches(store, self.budget, self.pending, config),
            rounds,
            self.claims,
            self.budget,
            runtime,
            ended=ended,
        )
