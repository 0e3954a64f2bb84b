"""The contract of the place where catalogues are published, beside the segments of a tier.

What lives here: `Generations` and its names. Implementations live in `tieredstore.providers`, their
test in `tieredstore.testing.generations_contract`. What a generation says is for the catalogue.

    .catalog/<h8>_<cluster>/<broker>/<generation, 20 digits>.json
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.model.errors import MetadataError
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

    * Creating a number is a compare-and-swap: of those who try one wins. Whoever knows that n is
      the newest and creates n + 1 has replaced n, and nobody else has.
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
