"""Opening the catalogue of the tier that was named to change it.

What lives here: `for_writing`, and `changing`, for what readers elsewhere are to see too.
It is imported when a verb runs: help must be fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tieredstore.access.wiring import NoCatalogueError, catalogue_of, has_file, publisher_of
from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import printable
from tieredstore.cli.tier import OpenedBackend, check_broker, no_catalogue
from tieredstore.driver.metadata import MetadataStore, Publisher, StaleCatalogueError
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import MetadataError


@dataclass(slots=True, kw_only=True)
class Changing:
    """A catalogue that is locked, and the generation it was published as when the change was
    done; None where nothing was published before."""

    metadata: MetadataStore
    generation: int | None = None


@contextmanager
def changing(backend: OpenedBackend) -> Iterator[Changing]:
    """The catalogue, locked. Where it was published before, it is again when the block has ended
    well; who may not publish is told before anything is written."""
    with locked(backend) as metadata:
        publisher = checked_publisher(backend, metadata)
        change = Changing(metadata=metadata)
        yield change
        if publisher is not None:
            change.generation = publisher.publish()


def locked(backend: OpenedBackend) -> MetadataStore:
    """The catalogue that was opened to be read, of a broker that is in it, opened to be written."""
    to_read = backend.catalogue()
    check_broker(backend.config, to_read)
    to_read.close()
    return for_writing(backend.config, backend.runtime)


def for_writing(config: StoreConfig, runtime: Runtime, *, create: bool = False) -> MetadataStore:
    """The catalogue, locked: no broker may be running on it. A copy of it cannot be written."""
    if not create and not has_file(config):
        missing = NoCatalogueError(config.catalogue_path, "there is no such file", names_file=True)
        raise no_catalogue(missing, config)
    try:
        return catalogue_of(config, runtime, read_only=False)
    except MetadataError as error:
        if not create or not error.is_damage:
            raise
        text = f"{error}; move it away, with all files of its name, and a new one is made"
        raise CommandError(printable(text), ExitCode.DAMAGE) from error


def checked_publisher(backend: OpenedBackend, metadata: MetadataStore) -> Publisher | None:
    """None where nothing was published yet. Refuses where what is published is another's."""
    generations = backend.provider.generations(backend.config.broker_name)
    if generations is None or not generations.listed():
        return None
    publisher = publisher_of(backend.config, backend.provider, metadata)
    if publisher is not None:
        try:
            publisher.check()
        except StaleCatalogueError as error:
            raise CommandError(printable(str(error)), ExitCode.REFUSED) from error
    return publisher
