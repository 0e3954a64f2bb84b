"""A rebuild that knows of the published catalogue: it starts from it, or refuses to undo it.

What lives here: which of both. What is found out from the bytes is in `rebuild`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tieredstore.access.care.rebuild import NewerCatalogueError, RebuildReport, rebuild
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.published import Publisher, StaleCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError


def rebuild_beside_published(
    metadata: MetadataStore,
    provider: SegmentProvider,
    config: StoreConfig,
    runtime: Runtime,
    *,
    publisher: Publisher,
    published: Callable[[], MetadataStore | None],
) -> RebuildReport:
    """As `rebuild`; `published` opens what was published, None where nothing was.

    An empty catalogue starts from what is published, with its ids, reserve hours and notes, and
    the bytes add what has come since. One that has rows is brought up to date only if nothing
    newer than it was published: else NewerCatalogueError. A published one that is damaged is a
    problem, and the bytes alone are asked. Afterwards this catalogue may replace what is published.
    """
    known: MetadataStore | None = None
    problems: tuple[str, ...] = ()
    try:
        if metadata.topics() or metadata.queues() or metadata.segments():
            publisher.check()
        else:
            known = published()
    except StaleCatalogueError as error:
        raise NewerCatalogueError(
            error.path,
            "what is published there is newer than this file: move the file away, and a rebuild "
            "starts from what is published",
        ) from error
    except MetadataError as error:
        problems = (f"what is published cannot be used: {error}",)
    try:
        report = rebuild(metadata, provider, config, runtime, known=known)
    finally:
        if known is not None:
            known.close()
    publisher.adopt()
    return replace(report, problems=(*problems, *report.problems))
