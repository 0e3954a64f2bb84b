"""The contract of the place for bytes that are on their way into a tier, and no part of it yet.

What lives here: `Scratch` and its names. Implementations live in `tieredstore.providers`. What is
put there, and when it goes, is for the jobs to say.

    .staged/<h8>_<cluster>/<broker>/<name>
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.driver.provider import Leftover
from tieredstore.driver.segment import Buffer
from tieredstore.model.errors import BackendRefusedError

STAGED: Final = ".staged"
LEFTOVER_KIND: Final = "staged"
"""What is there is a leftover of this kind: a job that never came to its end has left it."""

_PART: Final = r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}"
_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,7}}")


@dataclass(frozen=True, slots=True)
class StagedObject:
    name: str
    size: int


class Scratch(ABC):
    """Objects of one broker, each written once and whole, beside its tier.

    * Neither RocketMQ nor a listing of segments takes them for segments, and no writer's epoch is
      asked for: any number of processes may put at a time.
    * A name is text of ASCII letters, digits, `.`, `_`, `-`, parted by `/`.
    * Any thread may call anything. Nothing touches the backend before a call that needs it.

    Raises: SegmentNotFoundError, OffsetOutOfRangeError, BackendUnavailableError,
    BackendRefusedError.
    """

    @abstractmethod
    def describe(self) -> str:
        """Where they lie: one line for people, without secrets."""

    @abstractmethod
    def put(self, name: str, blocks: Iterable[Buffer]) -> int:
        """An object from a stream, durable and whole on return; its size, at least one byte.

        Whoever puts a name twice puts the same bytes twice: one of them stays.
        """

    @abstractmethod
    def read(self, name: str, position: int, length: int) -> bytes:
        """Exactly `length` bytes or an error."""

    @abstractmethod
    def listed(self, folder: str = "") -> Sequence[StagedObject]:
        """All objects whose names begin with `<folder>/`, or all there are; in no order."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """What is not there is no error."""


def check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BackendRefusedError(name, "stage", "this is no name of a staged object")
    return name


def staged_leftovers(prefix: str, scratch: Callable[[str], Scratch]) -> list[Leftover]:
    """What jobs staged for this broker, and never used or removed; nothing for a longer prefix."""
    if not prefix or "/" in prefix:
        return []
    found = scratch(prefix).listed()
    return [
        Leftover(kind=LEFTOVER_KIND, name=each.name, size=each.size, id=prefix) for each in found
    ]


def remove_staged(leftovers: Sequence[Leftover], scratch: Callable[[str], Scratch]) -> None:
    """Those of them that were staged."""
    for each in leftovers:
        if each.kind == LEFTOVER_KIND:
            scratch(each.id).delete([each.name])
