"""The directory of the index files that are not uploaded yet.

What lives here: `LocalFolder`: which files there are, what Java and older versions left behind,
and opening each file or finding that it has to be made again.

    <store_path>/tiered_index_file/<begin ms>        an index file; RocketMQ opens such names
                                   <begin ms>.keys   the hashes beside it
                                   footers/          copies of footers: see `footer_cache`
                                   compacting/       of RocketMQ, removed
                                   0000, 1111, 2222  of RocketMQ 5.1, renamed
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tieredstore.codec.tiered_index import file_bytes, is_legacy_written
from tieredstore.driver.durable import fsync_directory, make_directories
from tieredstore.index.items_checksum import ItemsChecksum
from tieredstore.index.key_notes import notes_path
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.index.watermarks import Durable
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError, SegmentCorruptError
from tieredstore.model.printable import log_of

log = log_of(__name__)

FOLDER: Final = "tiered_index_file"
COMPACTING: Final = "compacting"
OLD_NAMES: Final = ("0000", "1111", "2222")
_BEGIN_POSITION: Final = 4


class LocalFolder:
    """Names and files; nothing is known here of what is uploaded."""

    def __init__(self, config: StoreConfig, path: Path | None = None) -> None:
        self.path = Path(config.store_path) / FOLDER if path is None else path
        self.slot_count = config.index_slot_count
        self.item_capacity = config.index_item_count
        self.checksums: dict[int, ItemsChecksum] = {}  # of the files as they were opened

    def prepare(self) -> None:
        """Make the directory, and clear away what Java and older versions left in it."""
        try:
            make_directories(self.path)
            compacting = self.path / COMPACTING
            if compacting.is_dir():
                shutil.rmtree(compacting)
            for name in OLD_NAMES:
                self._rename(self.path / name)
        except OSError as error:
            raise BackendRefusedError(str(self.path), "open", str(error)) from error

    def begins(self) -> list[int]:
        """The begin timestamps of all index files, in order."""
        try:
            entries = list(self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackendRefusedError(str(self.path), "list", str(error)) from error
        return sorted(
            int(each.name)
            for each in entries
            if _is_begin(each.name) and each.is_file() and not each.is_symlink()
        )

    def open(self, begin: int, durable: Durable | None) -> IndexStoreFile | None:
        """The file, mended; None where it is damaged, or has not the length of all of them.

        Of a file of ours only the items that are known to be durable are kept: the rest is put
        again. Of somebody else's nobody knows, so all are kept.
        """
        path = self.path / str(begin)
        if path.is_file() and self._is_of_old_version(path):
            log.warning("%s: an index file of RocketMQ 5.1; it is made again", path)
            return None
        if durable is None and self.is_ours(begin):
            durable = Durable(0)
        try:
            file = IndexStoreFile.open(
                path,
                slot_count=self.slot_count,
                item_capacity=self.item_capacity,
                item_count=None if durable is None else durable.item_count,
            )
            self._check_items(file, durable)
            return file
        except (SegmentCorruptError, InvalidConfigError) as error:
            log.warning("an index file is damaged, it is made again: %s", error)
            return None

    def open_to_read(self, begin: int) -> IndexStoreFile:
        """The file as it is; another process may fill it."""
        return IndexStoreFile.open(
            self.path / str(begin),
            slot_count=self.slot_count,
            item_capacity=self.item_capacity,
            read_only=True,
        )

    def _check_items(self, file: IndexStoreFile, durable: Durable | None) -> None:
        """SegmentCorruptError where they are not what was made durable; the file is closed then."""
        if durable is None or durable.items is None:
            return
        try:
            found = ItemsChecksum().with_more(file, durable.item_count)
            has_hashes = file.notes is not None and durable.hashes is not None
            if found.items != durable.items or (has_hashes and found.hashes != durable.hashes):
                reason = "items with another checksum"
                raise SegmentCorruptError(str(file.path), reason, position=0)
        except BaseException:
            file.close()
            raise
        self.checksums[file.begin_timestamp] = found

    def check_size(self, begin: int) -> None:
        """InvalidConfigError for a file with the size of other settings."""
        path = self.path / str(begin)
        size = file_bytes(slot_count=self.slot_count, item_capacity=self.item_capacity)
        try:
            held = path.stat().st_size
        except OSError as error:
            raise BackendRefusedError(str(path), "open", str(error)) from error
        if held not in (0, size) and not self._is_of_old_version(path):
            raise InvalidConfigError(
                f"{path} has {held} bytes, but index_slot_count {self.slot_count} and "
                f"index_item_count {self.item_capacity} make {size}: they must never change"
            )

    def is_ours(self, begin: int) -> bool:
        """Whether we began the file: nothing in it counts before the catalogue has a note of it."""
        return notes_path(self.path / str(begin)).exists()

    def last_put(self, file: IndexStoreFile) -> tuple[int, int]:
        """The greater the later keys were put into a file of ours."""
        try:
            written = notes_path(file.path).stat().st_mtime_ns
        except OSError:
            written = 0
        return written, file.begin_timestamp

    def create(self, begin: int) -> IndexStoreFile:
        return IndexStoreFile.create(
            self.path, begin, slot_count=self.slot_count, item_capacity=self.item_capacity
        )

    def remove(self, begin: int) -> None:
        """The file, with what lies beside it. Idempotent."""
        path = self.path / str(begin)
        try:
            path.unlink(missing_ok=True)
            notes_path(path).unlink(missing_ok=True)
        except OSError as error:
            raise BackendRefusedError(str(path), "delete", str(error)) from error

    def remove_stray_notes(self) -> None:
        """Hashes whose file is gone."""
        for path in self.path.glob("*.keys"):
            if not path.with_suffix("").exists():
                path.unlink(missing_ok=True)

    def _rename(self, path: Path) -> None:
        """Give a file of 5.1 the name that it has since: its begin timestamp."""
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(_BEGIN_POSITION)
            begin = int.from_bytes(file.read(8), signed=True)
        target = self.path / str(begin)
        if begin <= 0 or target.exists():
            path.unlink()
        else:
            path.rename(target)
        fsync_directory(self.path)

    def _is_of_old_version(self, path: Path) -> bool:
        return is_legacy_written(
            file_bytes=path.stat().st_size,
            slot_count=self.slot_count,
            item_capacity=self.item_capacity,
        )


def _is_begin(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name[:20])) == name
