"""Topics that go, from both tiers.

What lives here: the order of it. What a store deletes is its own to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from tieredstore.access.tiered_reads import OpenTier
from tieredstore.access.upload.agreement import forget_stops
from tieredstore.access.upload.topic_filter import is_system_topic
from tieredstore.driver.message_store import MessageStore
from tieredstore.model.errors import BackendUnavailableError

LIGHT_QUEUE_PREFIX = "%LMQ%"


def delete_topics(
    tier: OpenTier, next_store: MessageStore, topics: Iterable[str], *, timeout: float | None
) -> int:
    """How many of them there were in either.

    The tier first: a crash in between leaves a topic that is uploaded again, not one whose tier is
    ahead. Nothing is uploaded meanwhile, but to queues that come just now; so the tier is emptied
    again at the end. Readers elsewhere are told at once: a topic that is made anew reuses names,
    and what an older catalogue says of them would look like damage. Raises BackendUnavailableError
    where an upload does not end in time.
    """
    wanted = set(topics)
    files = tier.parts.files
    keys = {*next_store.queues(), *(file.key for file in files.files())}
    known = {key.topic for key in keys} | tiered_topics(tier)
    paths = [file.path for file in files.files() if file.key.topic in wanted]
    with ExitStack() as alone:
        for key in sorted(key for key in keys if key.topic in wanted):
            if not alone.enter_context(tier.dispatcher.alone_with(key, timeout=timeout)):
                raise BackendUnavailableError(
                    f"{key.topic}/{key.queue_id}", "delete", "its upload does not end"
                )
        files.delete_topics(wanted)
        next_store.delete_topics(wanted)
        files.delete_topics(wanted)
        forget_stops(paths, tier.parts.metadata)  # not before: what is stopped stays so till then
        if wanted & known:
            tier.parts.publishing.step()
    tier.parts.metrics.forget("topic", wanted)
    tier.parts.metrics.forget("path", paths)
    return len(wanted & known)


def unused_topics(tier: OpenTier, retained: set[str]) -> set[str]:
    """Topics of the tier but the retained, the system's and light queues."""
    return {
        topic
        for topic in tiered_topics(tier) - retained
        if not is_system_topic(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX)
    }


def tiered_topics(tier: OpenTier) -> set[str]:
    return {record.topic for record in tier.parts.metadata.topics()}
