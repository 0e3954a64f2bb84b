"""Text from outside stays on one line, in errors and in the log."""

from __future__ import annotations

import logging
import pickle
import weakref
from pathlib import Path

import pytest

import tieredstore
from tests.access.tiered_kit import Broker
from tieredstore.model import errors
from tieredstore.model.printable import log_of, printable
from tieredstore.testing.samples import a_message

EVIL = "x\nCRITICAL root: disk failed\r\x1b[31m\x00\x85\u2028\u202e\ud800"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Orders", "Orders"),
        ("主题 grün 😀", "主题 grün 😀"),
        ("a\nb", "a\\nb"),
        ("a\x1b[31mb\u2028\ud800", "a\\x1b[31mb\\u2028\\ud800"),
    ],
)
def test_what_is_not_to_be_seen_is_escaped_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_message_of_an_error_is_one_line_and_its_facts_are_as_given() -> None:
    error = errors.SegmentCorruptError(EVIL, EVIL, position=3)
    assert str(error).isprintable()
    assert error.path == EVIL
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (str(again), again.path) == (str(error), EVIL)
    assert str(errors.SegmentNotFoundError(EVIL)).isprintable()


def test_a_line_of_the_log_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of("tieredstore.tests")
    log.warning("%s and %d", EVIL, 7)
    log.warning("%s and %d", "plain", 7)
    first, second = caplog.records
    assert first.getMessage().isprintable()
    assert (second.msg, second.args) == ("%s and %d", ("plain", 7))


def test_a_line_that_is_kept_keeps_no_error_and_nothing_that_it_met(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = log_of("tieredstore.tests")
    met = _FailingUpload()
    watch = weakref.ref(met)
    try:
        met.fail()
    except OSError as error:
        log.warning("%s: %s, %r", "Orders/0", error, error)
    del met
    assert watch() is None
    (record,) = caplog.records
    assert record.msg == "%s: %s, %r"
    assert record.getMessage() == "Orders/0: it is away, OSError('it is away')"


class _FailingUpload:
    """The error's traceback refers to it, and so to all that it would have sent."""

    def fail(self) -> None:
        raise OSError("it is away")


def test_a_topic_of_a_producer_begins_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(tmp_path)
    broker.open()
    with caplog.at_level(logging.DEBUG):
        broker.store.put_message(a_message(0, topic="x\nCRITICAL"))
        broker.cut()
        broker.store.flush()
        broker.store.shutdown(drain=False)
    lines = [record.getMessage() for record in caplog.records]
    assert any("CRITICAL" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_every_module_has_its_logger_from_one_place() -> None:
    root = Path(tieredstore.__file__).parent
    unsafe = "logging.getLogger(__name__)"
    found = [file.name for file in root.rglob("*.py") if unsafe in file.read_text()]
    assert found == ["memory_objects.py"]  # it fronts a server without a store of ours
