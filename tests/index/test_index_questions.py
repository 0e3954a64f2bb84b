"""What the key index is asked: any text, any window, any limit, and what it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.index.store_kit import ALL, Shop
from tieredstore.index.contract import NOTHING
from tieredstore.model.values import INT64_MAX
from tieredstore.testing.faults import Fault
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC

HOUR_MS = 3_600_000


def test_a_file_that_cannot_be_read_makes_the_answer_incomplete(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k"])
    shop.index.seal()
    shop.put(["k"])
    shop.faults.always = Fault.BEFORE
    answer = shop.ask("k")
    assert not answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000]
    shop.faults.forgive()
    assert len(shop.found("k")) == 3


@pytest.mark.parametrize(
    ("topic", "key", "window"),
    [
        ("", "k", {}),
        ("  ", "k", {}),
        (TOPIC, "", {}),
        (TOPIC, "k", {"begin": 2, "end": 1}),
        (TOPIC, "k", {"count_max": 0}),
        (TOPIC, "k", {"count_max": -(1 << 70)}),
    ],
)
def test_senseless_questions_have_empty_answers(
    tmp_path: Path, topic: str, key: str, window: dict[str, int]
) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    assert shop.index.query(topic, shop.topic_id, key, **{**ALL, **window}) == NOTHING


def test_any_text_is_a_key_and_any_number_a_limit(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    keys = ["主题", "😀", "\ud800", "a\tb", "#", "\x7f" * 300]
    shop.put([each for each in keys if each.isprintable() or each != "\ud800"])
    shop.index.seal()
    huge = {"count_max": 1 << 80, "begin": -(1 << 80), "end": 1 << 80}
    for key in keys:
        assert len(shop.found(key, **huge)) == (key != "\ud800")
    assert shop.found("two words", **huge) == []
    assert shop.found("u0-0", **huge) == [(0, 0)]


def test_a_topic_made_anew_does_not_find_the_keys_of_the_old_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k"])
    other = shop.topic_id + 1
    assert not shop.index.query(TOPIC, other, "k", **ALL).hits
    assert shop.index.indexed_offset(TOPIC, other, 0) == 0


def test_windows_are_kept_to_the_second_on_both_sides(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    at = STORE_TIMESTAMP + 5_500
    shop.put(["k"], times=[at])
    for state in ("local", "uploaded"):
        if state == "uploaded":
            shop.index.seal()
        for begin, end in [(at, at), (at - 1, at), (at, at + 1), (0, at), (at, INT64_MAX)]:
            assert shop.found("k", begin=begin, end=end) == [(0, 0)], (state, begin, end)
        assert shop.found("k", begin=at + 2000, end=INT64_MAX) == []
        assert shop.found("k", begin=0, end=at - 2000) == []


def test_a_file_that_began_before_the_window_is_asked(tmp_path: Path) -> None:
    """RocketMQ takes only files that begin within the window (weakness 3)."""
    shop = Shop(tmp_path)
    shop.put(["k"], times=[STORE_TIMESTAMP + 60_000])
    shop.put(["k"], times=[STORE_TIMESTAMP - 60_000])  # it lagged behind
    for state in ("local", "uploaded"):
        if state == "uploaded":
            shop.index.seal()
        assert shop.found("k", begin=STORE_TIMESTAMP + 1) == [(0, 0)], state
        assert shop.found("k", begin=STORE_TIMESTAMP + 60_000) == [(0, 0)], state
        assert shop.found("k", end=STORE_TIMESTAMP - 50_000) == [(0, 1000)], state


@pytest.mark.parametrize(("count_max", "wanted"), [(1, 1), (3, 3), (5, 3)])
def test_three_files_give_as_many_as_are_wanted(
    tmp_path: Path, count_max: int, wanted: int
) -> None:
    shop = Shop(tmp_path)
    for _ in range(2):
        shop.put(["k"])
        shop.index.seal()
        shop.clock.advance(10_000)
    shop.put(["k"])
    found = shop.found("k", count_max=count_max)
    assert found == [(0, 2000), (0, 1000), (0, 0)][:wanted]


def test_a_message_that_was_put_twice_is_shown_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.put(["k", "k"])
    shop.index.seal()
    for _ in range(3):
        shop.ends[0] = 0
        shop.put(["k", "k"])
    assert sorted(shop.found("k")) == [(0, 0), (0, 1000)]
    assert len(shop.found("k", count_max=1)) == 1


@pytest.mark.parametrize("foreign", [False, True])
def test_the_newest_of_many_are_found_in_whatever_order_they_were_put(
    tmp_path: Path, foreign: bool
) -> None:
    """A queue that lagged behind is put after the newer messages of another."""
    shop = Shop(tmp_path, items=10_000)
    newest = [STORE_TIMESTAMP + 100_000 + 1000 * number for number in range(5)]
    shop.put(["k"] * 5, times=newest, unique=False)
    shop.put(["k"] * 4000, times=[STORE_TIMESTAMP] * 4000, unique=False)
    if foreign:
        shop.index.shutdown()
        for path in (tmp_path / "tiered_index_file").glob("*.keys"):
            path.unlink()
        shop.open()
    wanted = [(0, 1000 * number) for number in (4, 3, 2, 1, 0)]
    for state in ("local", "uploaded", "opened anew"):
        if state == "uploaded":
            shop.index.seal()
        elif state == "opened anew":
            shop.reopen()
        assert shop.found("k", count_max=5) == wanted, state
        assert shop.found("k", count_max=7)[:5] == wanted, state
        assert len(shop.found("k", count_max=4004)) == 4004, state
