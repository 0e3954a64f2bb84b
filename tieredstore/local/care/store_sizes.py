"""The sizes that a store was made with, kept beside it.

What lives here: `check_sizes` and `stored_sizes`. No file of a store carries them, and with others
its bytes mean something else: a queue is read from the wrong place, an index loses its keys. So
they are written down when a store is made, in a file that Java does not look at, and compared at
each opening.
A store that Java made has no such file. There the files must have the lengths that the settings
ask for, and then the sizes are written down too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tieredstore.codec import local_index
from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.local.care.store_files import StoreFiles
from tieredstore.local.config import LocalConfig
from tieredstore.local.files.side_file import parsed
from tieredstore.local.keys.index_names import is_index_name
from tieredstore.local.queues.topic_directories import queue_number
from tieredstore.model.errors import InvalidConfigError, SegmentCorruptError

SIZE_SETTINGS: Final = (
    "commit_log_file_bytes",
    "queue_file_bytes",
    "index_slot_count",
    "index_item_count",
)
_INDEX_NAMES: Final = "index_slot_count, index_item_count"


def check_sizes(files: StoreFiles, config: LocalConfig, *, write: bool = True) -> None:
    """Raise InvalidConfigError unless the settings are the ones the store was made with.

    With `write`, a store that has none written down gets them, durably.
    """
    wanted = {name: int(getattr(config, name)) for name in SIZE_SETTINGS}
    try:
        stored = _decode(files.sizes, files.sizes.read_bytes())
    except FileNotFoundError:
        _check_files(files, wanted)
        if write:
            make_directories(files.config)
            write_atomically(files.sizes, [json.dumps(wanted, indent=2).encode("ascii") + b"\n"])
        return
    for name in SIZE_SETTINGS:
        if stored[name] != wanted[name]:
            raise InvalidConfigError(
                f"{name}: the store was made with {stored[name]}, not {wanted[name]} ({files.root})"
            )


def stored_sizes(files: StoreFiles) -> dict[str, int]:
    """The sizes written down beside the store, none where nothing is: `check_sizes` judges them."""
    try:
        document = parsed(files.sizes.read_bytes())
        return {name: document[name] for name in SIZE_SETTINGS}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidConfigError(
            f"{files.sizes}: damaged, the store's sizes are unknown"
        ) from error


def _decode(path: Path, data: bytes) -> dict[str, int]:
    try:
        stored = parsed(data)
    except ValueError as error:
        raise InvalidConfigError(f"{path}: damaged, the store's sizes are unknown") from error
    if not isinstance(stored, dict):
        raise InvalidConfigError(f"{path}: damaged, the store's sizes are unknown")
    for name in SIZE_SETTINGS:
        if type(stored.get(name)) is not int:  # true is no size
            raise InvalidConfigError(f"{path}: damaged, {name} is missing or no whole number")
    return stored


def _check_files(files: StoreFiles, wanted: dict[str, int]) -> None:
    """Every file there is has the configured length, or is empty: created and not yet used."""
    for path in _files_in(files.commit_log):
        _check_length("commit_log_file_bytes", wanted["commit_log_file_bytes"], path)
    for topic in _directories_in(files.consume_queues):
        for queue in _directories_in(topic):
            if queue_number(queue.name) is None:
                continue  # no queue, whatever it is
            for path in _files_in(queue):
                _check_length("queue_file_bytes", wanted["queue_file_bytes"], path)
    indexes = [path for path in _files_in(files.index) if is_index_name(path.name)]
    # A crash may have torn the newest index file, and that is no matter of settings.
    sound = indexes[:-1] if files.ended_abnormally else indexes
    for path in indexes:
        counts = wanted["index_slot_count"], wanted["index_item_count"]
        _check_index_length(path, *counts)
        if path in sound:
            _check_first_item(path, *counts)


def _check_length(name: str, wanted_bytes: int, path: Path) -> None:
    length = path.stat().st_size
    if length not in (0, wanted_bytes):
        raise InvalidConfigError(f"{name}: {path} has {length} bytes, not {wanted_bytes}")


def _check_index_length(path: Path, slot_count: int, item_count: int) -> None:
    length = path.stat().st_size
    wanted = local_index.file_bytes(slot_count=slot_count, item_capacity=item_count)
    if length not in (0, wanted):
        raise InvalidConfigError(f"{_INDEX_NAMES}: {path} has {length} bytes, not {wanted}")


def _check_first_item(path: Path, slot_count: int, item_count: int) -> None:
    """Slots and items can make up the same length in many ways: the first item tells them apart."""
    with path.open("rb") as file:
        header_bytes = file.read(local_index.HEADER_BYTES)
        file.seek(local_index.item_position(1, slot_count=slot_count))
        item_bytes = file.read(local_index.ITEM_BYTES)
    if not header_bytes:
        return
    misfit = f"{_INDEX_NAMES}: {slot_count} and {item_count} do not fit {path}"
    try:
        # Before 4.7.1 the count of used slots counted items.
        header = local_index.decode_header(
            header_bytes, slot_count=item_count, item_capacity=item_count, path=str(path)
        )
        fits = header.item_count == 0 or _is_first(local_index.decode_item(item_bytes), header)
    except SegmentCorruptError as error:
        raise InvalidConfigError(f"{misfit}: {error}") from error
    if not fits:
        raise InvalidConfigError(f"{misfit}: the first item is not where it must be")


def _is_first(item: local_index.LocalIndexItem, header: local_index.LocalIndexHeader) -> bool:
    return item.previous == 0 and item.log_offset == header.begin_log_offset


def _directories_in(directory: Path) -> Iterator[Path]:
    return (path for path in _entries(directory) if path.is_dir())


def _files_in(directory: Path) -> Iterator[Path]:
    return (path for path in _entries(directory) if path.is_file())


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
