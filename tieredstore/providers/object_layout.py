"""Where the bytes of a tier lie in an object store: keys, and what they name.

    sealed segment  <h8>_<cluster>/<broker>/<topic>/<queue id>/<TYPE>/<segment name>
    part            .parts/<sealed key>/<position, 20 digits>-<epoch, 10 digits>
    mark            .parts/<sealed key>/sealing-<epoch>     a sealed object may be there
                    .parts/<sealed key>/sealed-<epoch>      it is, whatever parts there are
                    .parts/<sealed key>/gone-<epoch>        what older epochs made is deleted
                    .parts/<sealed key>/deleting-<epoch>    a delete may be under way
    claim           .epochs/<h8>_<cluster>/<broker>/<epoch, 10 digits>
    boundary        .epochs/<h8>_<cluster>/<broker>/<epoch, 10 digits>.ends

A sealed key is the path of the posix provider's file, so a bucket that is copied to a folder is a
tier of that provider.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tieredstore.codec.names import cluster_directory, parse_segment_name, segment_name
from tieredstore.driver.segment import check_queue_path
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.values import SegmentType

PARTS: Final = ".parts/"
EPOCHS: Final = ".epochs/"

_TYPES: Final = {kind.name: kind for kind in SegmentType}
_PART: Final = re.compile(r"([0-9]{20})-([0-9]{10})")
_MARK: Final = re.compile(r"(sealing|sealed|gone|deleting)-([0-9]{10})")
_EPOCH: Final = re.compile(r"([0-9]{10})(\.ends)?")


class Mark(Enum):
    PART = "part"
    SEALING = "sealing"
    SEALED = "sealed"
    GONE = "gone"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Which segment a sealed key is."""

    path: str
    type: SegmentType
    base: int

    @property
    def broker(self) -> str:
        return self.path.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class PartName:
    """What lies below the parts of a segment; `position` is 0 for a mark."""

    segment_key: str
    mark: Mark
    position: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochName:
    broker: str
    epoch: int
    is_boundary: bool


class ObjectLayout:
    """The keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        if cluster in ("", ".", "..") or "/" in cluster or "\0" in cluster:
            raise InvalidConfigError(f"cluster_name: {cluster!r} is no name of a directory")
        self.directory = cluster_directory(cluster)

    def segment_key(self, path: str, type: SegmentType, base: int) -> str:
        return f"{self.directory}/{path}/{type.name}/{segment_name(base)}"

    def below(self, prefix: str) -> str:
        """What the sealed keys of all queue paths that lie at or below `prefix` begin with."""
        parts = [part for part in prefix.split("/") if part]
        return "/".join((self.directory, *parts)) + "/"

    def epochs(self, broker: str = "") -> str:
        return f"{EPOCHS}{self.directory}/" + (f"{broker}/" if broker else "")

    def claim_key(self, broker: str, epoch: int) -> str:
        return f"{self.epochs(broker)}{epoch:010d}"

    def boundary_key(self, broker: str, epoch: int) -> str:
        return f"{self.claim_key(broker, epoch)}.ends"

    def segment_of(self, key: str) -> SegmentName | None:
        """The segment with this sealed key; None for any other key."""
        directory, _, rest = key.partition("/")
        try:
            path, type_name, name = rest.rsplit("/", 2)
            base = parse_segment_name(name)
            check_queue_path(path, base)
        except (ValueError, BackendRefusedError):
            return None
        if directory != self.directory or type_name not in _TYPES:
            return None
        return SegmentName(path, _TYPES[type_name], base)

    def epoch_of(self, key: str) -> EpochName | None:
        broker, _, name = key.removeprefix(self.epochs()).rpartition("/")
        found = _EPOCH.fullmatch(name)
        if not key.startswith(self.epochs()) or not broker or found is None:
            return None
        return EpochName(broker, int(found[1]), found[2] is not None)


def parts_below(segment_prefix: str) -> str:
    """What the parts begin with, of all segments whose keys begin with this."""
    return f"{PARTS}{segment_prefix}"


def part_key(segment_key: str, position: int, epoch: int) -> str:
    return f"{PARTS}{segment_key}/{position:020d}-{epoch:010d}"


def mark_key(segment_key: str, mark: Mark, epoch: int) -> str:
    return f"{PARTS}{segment_key}/{mark.value}-{epoch:010d}"


def part_of(key: str) -> PartName | None:
    """What this key names; None for what is none of ours."""
    segment_key, _, name = key.removeprefix(PARTS).rpartition("/")
    if not key.startswith(PARTS):
        return None
    if found := _PART.fullmatch(name):
        return PartName(segment_key, Mark.PART, int(found[1]), int(found[2]))
    if found := _MARK.fullmatch(name):
        return PartName(segment_key, Mark(found[1]), 0, int(found[2]))
    return None
