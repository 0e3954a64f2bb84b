"""The verb cost: known prices come out, and more of something never costs less."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import TIER, asked, tier_beside
from tieredstore.access.survey import Load, commits_per_second, monthly_cost
from tieredstore.cli.output import ExitCode
from tieredstore.cli.report import how_long
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError

SLOW = Load(queue_count=1, messages_per_second=1, message_bytes=100)


def test_a_queue_that_commits_every_forty_seconds_costs_what_its_puts_cost() -> None:
    """Two parts each 40 s are 129 600 PUTs in 30 days: 0.65 dollars, as the list prices say.

    A batch is due after 30 s, and looked at every 20.
    """
    (commits,) = [
        line for line in monthly_cost(SLOW, StoreConfig()).lines if "commits" in line.what
    ]
    assert commits.amount == 129_600
    assert math.isclose(commits.dollars, 0.648)


def test_a_queue_without_messages_commits_nothing() -> None:
    idle = Load(queue_count=100, messages_per_second=0, message_bytes=100)
    cost = monthly_cost(idle, StoreConfig())
    assert cost.dollars == 0
    assert commits_per_second(idle, StoreConfig()) == 0


def test_a_full_batch_is_committed_before_it_is_old() -> None:
    fast = Load(queue_count=1, messages_per_second=4096, message_bytes=10)
    assert commits_per_second(fast, StoreConfig()) == 1
    large = Load(queue_count=1, messages_per_second=8, message_bytes=1 << 20)
    assert commits_per_second(large, StoreConfig()) == 2


def test_deletes_are_counted_and_free_and_publishing_is_counted() -> None:
    lines = monthly_cost(SLOW, StoreConfig()).lines
    deletes = [line for line in lines if line.operation == "delete"]
    assert sum(line.amount for line in deletes) > 0
    assert sum(line.dollars for line in deletes) == 0
    published = {line.operation: line.amount for line in lines if "published" in line.what}
    assert published == dict.fromkeys(("list", "put", "head"), 43_200)  # one a minute
    quiet = monthly_cost(SLOW, StoreConfig(publish_interval_ms=0)).lines
    assert not sum(line.amount for line in quiet if "published" in line.what)


def test_a_longer_wait_for_a_batch_saves_requests() -> None:
    often = monthly_cost(SLOW, StoreConfig(group_commit_timeout_ms=10_000))
    seldom = monthly_cost(SLOW, StoreConfig(group_commit_timeout_ms=300_000))
    assert seldom.dollars < often.dollars / 3


@given(
    st.integers(1, 10_000),
    st.floats(0, 1e5),
    st.floats(1, 1e6),
    st.floats(1, 4),
)
def test_more_messages_never_cost_less(
    queues: int, rate: float, message_bytes: float, more: float
) -> None:
    config = StoreConfig()
    some = Load(queue_count=queues, messages_per_second=rate, message_bytes=message_bytes)
    many = Load(queue_count=queues, messages_per_second=rate * more, message_bytes=message_bytes)
    cost = monthly_cost(some, config).dollars
    assert cost >= 0
    assert monthly_cost(many, config).dollars >= cost * (1 - 1e-9)


def test_the_prices_of_the_settings_count(command: Command) -> None:
    words = ["cost", "--messages-per-second", 1, "--message-bytes", 100, "--queues", 1, "--json"]
    rows = command.run(*words).rows
    assert rows[0]["dollars"] == 0.648
    assert rows[-1]["what"] == "total"
    free = command.run(*words, "--storage-price", 0).rows
    assert free[-1]["dollars"] < rows[-1]["dollars"]


def test_a_tier_that_is_there_costs_what_its_bytes_cost(command: Command) -> None:
    ran = asked(command, TIER, "cost", "--json")
    assert ran.code == 0
    stored = next(row for row in ran.rows if row["operation"] == "store")
    segments = asked(command, TIER, "segments", "--json").rows
    assert math.isclose(stored["amount"], sum(row["size"] for row in segments) / 1e9, abs_tol=0.001)
    assert "total: " in asked(command, TIER, "cost").out


def test_neither_a_tier_nor_rates_is_a_clear_error(command: Command) -> None:
    ran = command.run("cost")
    ran.refused(ExitCode.USAGE, "--messages-per-second")


RATES = {
    "--messages-per-second": "1",
    "--message-bytes": "100",
    "--keys": "2",
    "--read-bytes-per-second": "1",
    "--reserve-hours": "72",
    "--storage-price": "0.02",
}


@pytest.mark.parametrize("option", RATES)
@pytest.mark.parametrize(
    "number", ["inf", "-inf", "nan", "NaN", "1e400", "1e300", "-1", "many", ""]
)
def test_a_number_that_is_no_amount_is_refused(command: Command, option: str, number: str) -> None:
    words = [word for name, value in RATES.items() for word in (name, value)]
    assert command.run("cost", *words, "--json").code == 0
    ran = command.run("cost", *words, option, number, "--json")
    ran.refused(2, option)


def test_the_largest_amounts_still_come_to_numbers(command: Command) -> None:
    words = [word for name in RATES for word in (name, "1e15")]
    for row in command.run("cost", *words, "--json").rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, 1e16])
def test_no_load_and_no_price_is_made_of_what_is_no_amount(value: float) -> None:
    with pytest.raises(InvalidConfigError, match="messages_per_second"):
        Load(queue_count=1, messages_per_second=value, message_bytes=1)
    with pytest.raises(InvalidConfigError, match="is no price"):
        monthly_cost(SLOW, StoreConfig(), storage_dollars=value)


def test_a_month_reckoned_from_a_moment_says_so(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "s"
    put = ("put", "Orders", "--store-path", store, "--body", "x")
    assert command.run(*put, "--count", 50).code == 0
    assert command.run("offload", "--store-path", store, "--broker", "b").code == 0
    tier = tier_beside(store)
    ran = command.run("cost", *tier)
    assert ran.code == 0
    assert "\nreckoned from a second: all messages of this tier came within that time" in ran.out
    assert "--messages-per-second" in ran.out
    assert command.run("cost", *tier, "--json").rows[-1]["seconds_covered"] == 1.0
    given = command.run("cost", *tier, "--messages-per-second", 5, "--json")
    assert (given.err, given.rows[-1]["seconds_covered"]) == ("", None)


@pytest.mark.parametrize(
    ("seconds", "told"), [(1, "a second"), (2.5, "2.5 seconds"), (90, "1.5 minutes"),
                          (7200, "2.0 hours")],
)  # fmt: skip
def test_a_time_is_told_in_words(seconds: float, told: str) -> None:
    assert how_long(seconds) == told
