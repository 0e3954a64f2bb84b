"""The walk through the first hour notices errors, and its page names only what exists."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from tests.docs.page_commands import commands
from tests.docs.pages import ROOT, Block, blocks
from tests.docs.test_commands import unknown
from tests.front_door.walk import PAGE, Home, NotAsToldError, Section, is_said, sections

HOUR = sections(PAGE.read_text(encoding="utf-8"))
TASKS = (
    "See it work",
    "Put a tier around a store of your own",
    "Offload to S3",
    "Find a message by its key",
    "See where a message is, or why it is not there",
    "Lose the broker's disk",
    "Move the tier",
    "Verify it",
    "Read it with Spark",
    "Watch a broker",
    "Write a provider",
    "Upgrade",
)
SERVER = """
import socketserver, sys
address = "127.0.0.1", int(sys.argv[2])
socketserver.TCPServer(address, socketserver.BaseRequestHandler).serve_forever()
"""


def section(*found: Block) -> Section:
    return Section("1. Try", list(found))


def shell(text: str) -> Block:
    return Block("shell", [], text)


def told(text: str) -> Block:
    return Block("text", [], text)


def test_the_page_has_twelve_tasks_each_with_commands() -> None:
    assert [each.title for each in HOUR] == [f"{n}. {title}" for n, title in enumerate(TASKS, 1)]
    for each in HOUR:
        kinds = [block.language for block in each.blocks]
        assert {"shell", "text"} <= set(kinds), each.title
        assert kinds.index("shell") < kinds.index("text")  # a command comes before its output


def test_its_verbs_options_and_files_exist() -> None:
    """Except old names, which the page shows to be accepted still."""
    for each in HOUR:
        for block in each.blocks:
            for command in commands(block.text) if block.language == "shell" else ():
                words = [word for word in command.words if "=" not in word]
                if words[0] == "tieredstore":
                    assert set(unknown(words[1:])) <= {"--body", "--count"}, command.line
                for name in re.findall(r"\bexamples[/.]\w+", command.line):
                    assert (ROOT / f"{name.replace('.', '/')}.py").exists(), command.line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb", "a\nb\n"),
        ("a …\nb", "a 1.5 s\nb"),
        ("…\nb", "a\na\n\nb"),
        ("a\n…\nb\n…", "a\nb"),
        ("…", ""),
        ("…x…", "axb"),
    ],
)
def test_what_is_said_as_told_passes(text: str, said: str) -> None:
    assert is_said(text, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "a\nb"),
        ("a", "b\na"),
        ("a.c", "abc"),
        ("a …", "b 1"),
        ("…\nb", "b\na"),
        ("a\n…\nc", "a\nb"),
    ],
)
def test_what_is_said_otherwise_is_caught(text: str, said: str) -> None:
    assert not is_said(text, said)


def test_files_commands_and_settings_of_the_shell_come_one_after_the_other(tmp_path: Path) -> None:
    file = Block("toml", ["a.toml"], "x = 1\n")
    lines = [
        "cat a.toml",
        "export NAME='two words'",
        'echo "$NAME in $HOME"',
        "exit 3  # exit code 3",
    ]
    home = Home(tmp_path)
    said = told(f"x = 1\ntwo words in {tmp_path}\n")
    home.walk(section(file, shell("\n".join(lines)), said))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo why >&2; exit 4", "why\nexit code 4"),
        ("echo other", "other"),
        ("no-such-program", "127"),
    ],
)
def test_the_first_command_that_fails_ends_the_walk(
    tmp_path: Path, command: str, said: str
) -> None:
    home = Home(tmp_path)
    with pytest.raises(NotAsToldError, match=said):
        home.walk(section(shell(command), told("as told"), shell("touch never")))
    assert not (tmp_path / "never").exists()


def test_a_server_is_waited_for_and_ends_with_the_walk(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    home = Home(tmp_path)
    try:
        home.walk(section(shell(f"{sys.executable} server.py --port 9000 &")))
        port = int(home.run(next(commands("echo 9000"))))
        socket.create_connection(("127.0.0.1", port)).close()
    finally:
        home.end()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(NotAsToldError, match="broken\n.*does not start"):
        home.walk(section(shell("echo broken; exit 1 &")))
    home.end()


def test_the_page_has_no_port_but_the_one_that_a_free_one_replaces() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {block.language for block in blocks(page)} <= {"shell", "text", "toml", "python"}
    assert set(re.findall(r"127\.0\.0\.1:(\d+)|--port (\d+)", page)) == {("9000", ""), ("", "9000")}
