"""What makes the catalogue readable elsewhere: a chore beside the uploads.

What lives here: when it is published, and that nobody else suffers where it cannot be. How is for
the catalogue's own publisher.
"""

from __future__ import annotations

from tieredstore.access.health import CatalogueHealth
from tieredstore.driver.published import Publisher, StaleCatalogueError
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.printable import log_of

log = log_of(__name__)


class PublishChore:
    """Publishes what has changed, when it is told to; idle where nothing has.

    A failure is logged and counted, and the next step tries again. Once another writer has
    published, no step does anything more.
    """

    def __init__(self, publisher: Publisher | None) -> None:
        self._publisher = publisher
        self._is_stale = False

    @property
    def is_enabled(self) -> bool:
        return self._publisher is not None

    @property
    def has_changes(self) -> bool:
        """Whether a last step is due."""
        publisher = self._publisher
        return publisher is not None and not self._is_stale and publisher.has_changes

    def step(self) -> None:
        publisher = self._publisher
        if publisher is None or self._is_stale:
            return
        try:
            publisher.publish()
        except StaleCatalogueError as error:
            self._is_stale = True
            log.error("the catalogue is published no more: %s", error)
        except TieredStoreError as error:
            log.warning("the catalogue could not be published: %s", error)

    def health(self) -> CatalogueHealth:
        publisher = self._publisher
        if publisher is None:
            return CatalogueHealth()
        return CatalogueHealth(
            published_count=publisher.published_count,
            failure_count=publisher.failure_count,
            error=publisher.problem,
        )
