"""The help of every verb: it has an example, and the example is one that the command takes."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.cli_kit import Command
from tests.cli.verb_kit import EVERY, ON_A_TIER, commands

_EXAMPLE = re.compile(r"Example: tieredstore (.+?)(?:\n\n|\Z)", re.DOTALL)


def example(command: Command, name: str) -> list[str]:
    ran = command.run(*name.split(), "--help").done()
    (text,) = _EXAMPLE.findall(ran.out)
    return shlex.split(text)


@pytest.mark.parametrize("name", EVERY)
def test_the_example_of_a_verb_is_one_that_the_command_takes(command: Command, name: str) -> None:
    words = name.split()
    said = example(command, name)
    assert said[: len(words)] == words
    context = commands()[name].make_context(name, said[len(words) :])
    assert context.params  # parsed, converted and checked; nothing was run


@pytest.mark.parametrize("name", EVERY)
def test_an_example_with_another_option_would_be_seen(command: Command, name: str) -> None:
    said = example(command, name)[len(name.split()) :]
    with pytest.raises(Exception, match="no-such-option"):
        commands()[name].make_context(name, [*said, "--no-such-option"])


@pytest.mark.parametrize("name", EVERY)
def test_every_verb_takes_json(name: str) -> None:
    assert any("--json" in option.opts for option in commands()[name].params)


@pytest.mark.parametrize("name", ON_A_TIER)
def test_every_verb_of_a_tier_says_how_to_name_one(command: Command, name: str) -> None:
    said = command.run(*name.split(), "--help").done().out
    for option in ("--config FILE", "--path ROOT", "--metadata FILE", "--broker NAME"):
        assert option in said


def test_the_family_of_local_has_an_example_too(command: Command) -> None:
    assert "Example: tieredstore local " in command.run("local", "--help").done().out
