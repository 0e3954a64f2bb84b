"""The contracts for small named objects beside the segments: published catalogues, and files that
jobs stage on their way into a tier.

    .catalog/<h8>_<cluster>/<broker>/<generation, 20 digits>.json
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
from tieredstore.model.errors import BackendRefusedError, MetadataError
from tieredstore.model.values import INT64_MAX

CATALOGUES: Final = ".catalog"

_NAME: Final = re.compile(r"([0-9]{20})\.json")


class GenerationTakenError(MetadataError):
    """Somebody has published this generation: it stays as it is."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another writer has published this generation")

    @property
    def is_damage(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class ListedGeneration:
    number: int
    size: int


class Generations(ABC):
    """Numbered objects of one broker: each is written once, whole, and never changed.

    * Creating a number is a compare-and-swap: one of several callers wins. A caller that knows n
      as the newest and creates n + 1 has replaced n, and no other has.
    * Any thread may call anything. Nothing touches the backend before a call that needs it.

    Raises: BackendUnavailableError (of a creation the outcome is unknown), BackendRefusedError.
    """

    @abstractmethod
    def describe(self) -> str:
        """Where they lie: one line for people, without secrets."""

    @abstractmethod
    def listed(self) -> Sequence[ListedGeneration]:
        """All there are, by ascending number; what has another name is passed over."""

    @abstractmethod
    def read(self, listed: ListedGeneration) -> bytes:
        """Exactly as many bytes as were listed; SegmentNotFoundError if it is gone by now."""

    @abstractmethod
    def create(self, number: int, data: bytes) -> None:
        """Durable and whole on return, or not there. GenerationTakenError if there is one."""

    @abstractmethod
    def delete(self, numbers: Sequence[int]) -> None:
        """What is not there is no error."""


def generation_name(number: int) -> str:
    return f"{number:020d}.json"


def generation_of(name: str) -> int | None:
    """The number of a generation with this name; None for any other name."""
    found = _NAME.fullmatch(name)
    number = 0 if found is None else int(found[1])
    return number if 0 < number <= INT64_MAX else None


STAGED: Final = ".staged"
LEFTOVER_KIND: Final = "staged"
"""What is there is a leftover of this kind: a job that never came to its end has left it."""

_PART: Final = r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}"
_STAGED_NAME: Final = re.compile(rf"{_PART}(/{_PART}){{0,7}}")


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

        Callers that put one name twice put the same bytes twice: one of them stays.
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
    if _STAGED_NAME.fullmatch(name) is None:
        raise BackendRefusedError(name, "stage", "this is no name of a staged object")
    return name


def staged_leftovers(prefix: str, scratch: Callable[[str], Scratch]) -> list[Leftover]:
    """What jobs staged for this broker, and never used or removed; nothing for a longer prefix."""
    if not prefix or "/" in prefix:
        return []
    found = scratch(prefix).listed()
    return [
        Leftover(kind=LEFTOVER_KIND, name=staged.name, size=staged.size, id=prefix)
        for staged in found
    ]


def remove_staged(leftovers: Sequence[Leftover], scratch: Callable[[str], Scratch]) -> None:
    """Those of them that were staged."""
    for leftover in leftovers:
        if leftover.kind == LEFTOVER_KIND:
            scratch(leftover.id).delete([leftover.name])
