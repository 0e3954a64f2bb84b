"""Where the objects of a broker's tier lie in a bucket: keys, and what they name.

    <rounds>/log/<sequence, 20 digits>     an entry
    <rounds>/data/<epoch, 10 digits>-<name>    bytes that are too many for an entry, or merged
    <rounds>/load/<run>/<name>             a segment that a task of a load has written
    <rounds>/adopted/<epoch, 10 digits>-<number, 20 digits>-<name>    what a load has added
    <rounds>/state/<sequence, 20 digits>   the sum of all entries up to that one
    <rounds>/epoch/<epoch, 10 digits>      a writer's claim
    <h8>_<cluster>/<broker>/<topic>/<queue id>/<TYPE>/<segment name>    a sealed segment

where <rounds> is `.rounds/<h8>_<cluster>/<broker>`. Names in the log are relative to it, except
those of sealed segments: these are whole keys, RocketMQ's own, so that a bucket copied to a folder
opens there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tieredstore.codec.names import cluster_directory, parse_segment_name, segment_name
from tieredstore.driver.segment import check_queue_path
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.values import INT64_MAX, SegmentType

ROUNDS: Final = ".rounds/"
ADOPTED: Final = "adopted"
"""The folder, and the kind of the note that names the object of a load's newest commit."""
OLD_PARTS: Final = ".parts/"
"""The folder with the parts of open segments, before there was a log."""
OLD_CLAIMS: Final = ".epochs/"
OLD_LAYOUT: Final = (
    "open segments of an older layout lie there: seal them with the version that wrote them, then"
    " `rebuild` takes them in"
)

_TYPES: Final = {kind.name: kind for kind in SegmentType}
_NUMBERED: Final = re.compile(r"(log|state|epoch)/([0-9]{10,20})")
_OF_EPOCH: Final = re.compile(rf"(?:data|{ADOPTED})/([0-9]{{10}})-.+")
_OLD_PART: Final = re.compile(r"(.+)/([0-9]{20}|[a-z]+)-([0-9]{10})")
_OLD_CLAIM: Final = re.compile(r".+/([0-9]{10})(?:\.ends)?")


def log_name(sequence: int) -> str:
    return f"log/{sequence:020d}"


def state_name(sequence: int) -> str:
    return f"state/{sequence:020d}"


def epoch_name(epoch: int) -> str:
    return f"epoch/{epoch:010d}"


def epoch_of(name: str) -> int | None:
    """The epoch of the writer that made a data object, or what tells of a load, of this name; None
    for any other name."""
    found = _OF_EPOCH.fullmatch(name)
    return None if found is None else int(found[1])


def number_of(name: str) -> int | None:
    """The number of an entry, a state or a claim with this name; None for any other name."""
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return None
    number = int(found[2])
    of_kind = {"log": log_name, "state": state_name, "epoch": epoch_name}[found[1]]
    return number if 0 < number <= INT64_MAX and of_kind(number) == name else None


def open_part(parts: Iterable[str], claims: Iterable[str]) -> str | None:
    """The first of these keys of the older layout that is part of an open segment.

    Sealing left a mark, `sealed-<epoch>`, if an older writer's part could still land, and the next
    claim removed it. So a segment that the newest writer has marked is whole at its sealed key,
    whatever parts are beside it. A mark of an older epoch may have come late, and proves nothing.
    """
    names = {key: _OLD_PART.fullmatch(key) for key in parts}
    numbers = (_OLD_CLAIM.fullmatch(key) for key in claims)
    newest = max((int(each[1]) for each in numbers if each), default=0)
    sealed: dict[str, int] = {}
    for name in names.values():
        if name is not None and name[2] == "sealed" and (epoch := int(name[3])) >= newest:
            sealed[name[1]] = max(epoch, sealed.get(name[1], 0))
    for key, name in names.items():
        if name is None or int(name[3]) > sealed.get(name[1], -1):
            return key
    return None


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The segment that a sealed key names."""

    path: str
    type: SegmentType
    base: int

    @property
    def broker(self) -> str:
        return self.path.split("/", 1)[0]


class ObjectLayout:
    """The keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        if cluster in ("", ".", "..") or "/" in cluster or "\0" in cluster:
            raise InvalidConfigError(f"cluster_name: {cluster!r} is no name of a directory")
        self.directory = cluster_directory(cluster)

    def rounds(self, broker: str) -> str:
        """The prefix that names in a broker's log are relative to."""
        return f"{ROUNDS}{self.directory}/{broker}/"

    def segment_key(self, path: str, type: SegmentType, base: int) -> str:
        return f"{self.directory}/{path}/{type.name}/{segment_name(base)}"

    def below(self, prefix: str) -> str:
        """The prefix of the sealed keys of all queue paths at or below `prefix`."""
        parts = [part for part in prefix.split("/") if part]
        return "/".join((self.directory, *parts)) + "/"

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
