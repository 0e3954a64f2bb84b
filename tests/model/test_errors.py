"""The tree of errors: kinds, facts, messages of one line, and pickling."""

from __future__ import annotations

import pickle

import pytest

from tieredstore.model import errors
from tieredstore.model.errors import (
    BackendError,
    BackendRefusedError,
    BackendUnavailableError,
    BodyNotPlainError,
    CatalogueLockedError,
    FencedError,
    InvalidArgumentError,
    InvalidConfigError,
    MetadataError,
    OffsetOutOfRangeError,
    OtherProcessError,
    PositionMismatchError,
    SegmentCorruptError,
    SegmentError,
    SegmentNotFoundError,
    SegmentSealedError,
    StoreClosedError,
    TieredStoreError,
    UnknownNameError,
)

ONE_OF_EACH: list[TieredStoreError] = [
    InvalidConfigError("no"),
    InvalidArgumentError("want a whole number"),
    UnknownNameError("there is no topic T"),
    StoreClosedError("closed"),
    OtherProcessError("store", opened_by=17),
    BodyNotPlainError("the body is damaged"),
    OffsetOutOfRangeError("queue offset", offset=9, minimum=1, maximum=5),
    SegmentNotFoundError("b/t/0"),
    SegmentSealedError("b/t/0"),
    PositionMismatchError("b/t/0", expected=1, actual=2),
    SegmentCorruptError("b/t/0", "no magic", position=7),
    BackendUnavailableError("b/t/0", "read", "timed out"),
    BackendRefusedError("b/t/0", "write", "no permission"),
    FencedError("b/t/0", "write", epoch=7),
    MetadataError("m.json", "torn"),
    CatalogueLockedError("m.json"),
]


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: TieredStoreError) -> None:
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__
    assert "\n" not in str(copy)


def test_every_kind_is_tried_above() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TieredStoreError)
    }
    abstract = {TieredStoreError, SegmentError, BackendError}
    assert {type(error) for error in ONE_OF_EACH} == kinds - abstract


def test_facts_are_attributes() -> None:
    mismatch = PositionMismatchError("b/t/0", expected=1, actual=2)
    assert (mismatch.path, mismatch.expected, mismatch.actual) == ("b/t/0", 1, 2)
    beyond = OffsetOutOfRangeError("queue offset", offset=9, minimum=1, maximum=5)
    assert (beyond.offset, beyond.minimum, beyond.maximum) == (9, 1, 5)
    refused = BackendRefusedError("b/t/0", "write", "no permission")
    assert (refused.path, refused.operation) == ("b/t/0", "write")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (InvalidConfigError, ValueError),
        (OffsetOutOfRangeError, ValueError),
        (SegmentNotFoundError, FileNotFoundError),
    ],
)
def test_some_are_pythons_own_kinds_too(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)
