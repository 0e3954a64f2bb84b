"""Which index files stay when a store opens, and from where the log has to be replayed.

What lives here: the reading of the directory and of what is known to be durable. Why the rules are
as they are is told by `IndexService`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tieredstore.driver.durable import fsync_directory
from tieredstore.local.keys.index_cut import IndexCut, cut_back, items_below
from tieredstore.local.keys.index_file import IndexFile
from tieredstore.local.keys.index_names import index_names
from tieredstore.local.keys.index_state import IndexState
from tieredstore.model.errors import SegmentCorruptError
from tieredstore.model.printable import log_of

log = log_of(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDirectory:
    """Where the files are and how large they are."""

    path: Path
    slot_count: int
    item_capacity: int

    def open(self, name: str) -> IndexFile:
        return IndexFile.open(
            self.path / name, slot_count=self.slot_count, item_capacity=self.item_capacity
        )

    def cut_back(self, name: str, cut: IndexCut) -> IndexFile:
        return cut_back(
            self.path / name, cut, slot_count=self.slot_count, item_capacity=self.item_capacity
        )


def all_files(directory: IndexDirectory, state: IndexState | None) -> list[IndexFile]:
    """Every file as it is, the oldest first: what an orderly shutdown left is durable.

    One that is damaged goes, with what follows it: the log has what they held.
    """
    names = _without_hole(directory, state)
    kept: list[IndexFile] = []
    for name in names:
        try:
            file = directory.open(name)
            _check_end(file, state)
            kept.append(file)
        except SegmentCorruptError as error:
            log.warning("an index file is made again from the log: %s", error)
            break
    remove_files(directory, names[len(kept) :])
    return kept


def _check_end(file: IndexFile, state: IndexState | None) -> None:
    """No checksum covers the times of a header; what they were is known of each file."""
    cut = state.files.get(file.name) if state is not None else None
    header = file.header
    if cut is None or cut.item_count < header.item_count:
        return  # nothing is known of it, or RocketMQ went on with it
    if cut.item_count > header.item_count:
        reason = f"it has {header.item_count} items, it had {cut.item_count}"
        raise SegmentCorruptError(str(file.path), reason, position=0)
    if cut.end_timestamp != header.end_timestamp or header.begin_timestamp > header.end_timestamp:
        reason = f"its times are {header.begin_timestamp} to {header.end_timestamp}"
        raise SegmentCorruptError(str(file.path), reason, position=0)


def _without_hole(directory: IndexDirectory, state: IndexState | None) -> list[str]:
    """The names of the files; those behind one that is missing are deleted.

    Keys are put in the order of the log only: what a missing file held can be put again when
    nothing behind it is there. The word about an expired file goes within one flush; a crash just
    before that makes an index anew that was whole.
    """
    names = index_names(directory.path)
    missing = sorted(set(state.files).difference(names)) if state is not None else []
    first = next((name for name in missing if name < max(names, default="")), None)
    if first is None:
        return names
    log.warning("index file %s is missing: it and what follows are made again", first)
    remove_files(directory, [name for name in names if name > first])
    return [name for name in names if name < first]


def durable_files(
    directory: IndexDirectory, state: IndexState | None, *, durable_timestamp: int
) -> list[IndexFile]:
    """The files proven durable, cut back to what is proven of them; the others are deleted."""
    names = _without_hole(directory, state)
    kept: list[IndexFile] = []
    for name in names:
        cut = state.files.get(name) if state is not None else None
        try:
            file = _durable(directory, name, cut, kept, durable_timestamp)
        except SegmentCorruptError as error:
            log.warning("an index file is made again from the log: %s", error)
            break
        if file is None:
            break
        kept.append(file)
    remove_files(directory, names[len(kept) :])
    return kept


def remove_files(directory: IndexDirectory, names: Sequence[str]) -> None:
    """The newest first: what a crash leaves has no hole."""
    for name in reversed(names):
        (directory.path / name).unlink(missing_ok=True)
    if names:
        log.info("%s: %d index files deleted", directory.path, len(names))
        fsync_directory(directory.path)


def _durable(
    directory: IndexDirectory,
    name: str,
    cut: IndexCut | None,
    older: Sequence[IndexFile],
    durable_timestamp: int,
) -> IndexFile | None:
    if cut is not None:
        if cut.item_count < directory.item_capacity - 1:
            return directory.cut_back(name, cut)
        file = directory.open(name)  # full: nothing was written after it was flushed
        return file if file.is_full else directory.cut_back(name, cut)
    if durable_timestamp <= 0:
        return None
    file = directory.open(name)
    # Java's word for a full file is its end timestamp in the checkpoint. A later file may end
    # with the same one, or with a lower one when the clock was set back: no word for that one.
    ends = max((other.header.end_timestamp for other in older), default=0)
    proven = ends < file.header.end_timestamp <= durable_timestamp
    return file if file.is_full and proven else None


def replay_start(
    files: Sequence[IndexFile], state: IndexState | None, *, min_log_offset: int
) -> int:
    """The log offset of the first message whose keys may be missing."""
    start = files[-1].header.end_log_offset if files else 0
    if state is not None and _is_of(files, state):
        start = max(start, state.replay_from)
    return max(start, min_log_offset)


def _is_of(files: Sequence[IndexFile], state: IndexState) -> bool:
    """Does the state speak of these files, or has somebody taken files away since?"""
    if not state.newest:
        return True
    counts = {file.name: file.header.item_count for file in files}
    return counts.get(state.newest, -1) >= state.files[state.newest].item_count


def cut_before(files: Sequence[IndexFile], log_end: int) -> tuple[list[IndexFile], IndexCut | None]:
    """The files that stay when the log ends at `log_end`, and what to cut the last of them to.

    The end timestamp of a cut is known to the second only. So the last message before the end of
    the log goes too: putting its keys again gives the file the exact one back.
    """
    kept = list(files)
    while kept and kept[-1].header.end_log_offset >= log_end:
        file = kept[-1]
        count = items_below(file, log_end)
        if count > 0:
            count = items_below(file, file.log_offset_at(count))
        if count > 0:
            return kept, IndexCut(item_count=count, end_timestamp=file.timestamp_at(count))
        kept.pop()
    return kept, None
