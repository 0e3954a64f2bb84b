"""The names of the package are all there, each from one place, and none is imported before use."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tieredstore


def test_every_public_name_can_be_had() -> None:
    for name in tieredstore.__all__:
        assert getattr(tieredstore, name) is not None


def test_what_a_type_checker_sees_is_what_a_program_gets() -> None:
    tree = ast.parse(Path(tieredstore.__file__).read_text())
    (for_checkers,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: f"{(node.module or '').removeprefix('tieredstore.')}.{alias.name}"
        for node in for_checkers.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == tieredstore._HOMES
    assert sorted(seen) == sorted(tieredstore.__all__)


HOMES = {
    "tieredstore.flat": {
        "FlatCommitLogFile": "message_file.FlatCommitLogFile",
        "FlatConsumeQueueFile": "message_file.FlatConsumeQueueFile",
    },
    "tieredstore.index": {
        "IndexStore": "store.IndexStore",
        "IndexStoreFile": "local_file.IndexStoreFile",
        "IndexStoreService": "store.IndexStore",
    },
    "tieredstore.providers": {
        "MemoryFileSegment": "memory.MemoryFileSegment",
        "PosixFileSegment": "posix.PosixFileSegment",
        "S3FileSegment": "object_provider.LogSegment",
    },
}


@pytest.mark.parametrize("package", HOMES)
def test_a_package_gives_the_names_that_it_is_known_for(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == sorted(HOMES[package])
    assert set(module.__all__) <= set(dir(module))
    for name, home in HOMES[package].items():
        inner, _, real = home.rpartition(".")
        assert getattr(module, name) is getattr(import_module(f"{package}.{inner}"), real)
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        module.Other  # noqa: B018


@pytest.mark.parametrize("package", HOMES)
def test_a_package_alone_imports_none_of_its_modules(package: str) -> None:
    code = f"import sys, {package}; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert not {name for name in loaded if name.startswith(f"{package}.")}
    assert "numpy" not in loaded


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Tiered'"):
        tieredstore.Tiered  # noqa: B018


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, tieredstore; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "fsspec", "typer", "tieredstore.access"} & set(found.stdout.split())


CALLED = ("AbstractPluginMessageStore", "MessageStore", "MetadataStore", "TieredMessageStore")


@pytest.mark.parametrize("name", [*CALLED, "ConsumerOffsets", "TieredReader", "TopicTable"])
def test_help_says_what_each_method_does(name: str) -> None:
    owner = getattr(tieredstore, name)
    public = [each for each in dir(owner) if not each.startswith("_")]
    assert not [each for each in public if not inspect.getdoc(getattr(owner, each))]


RAISES_NOTHING = {"config", "metrics", "topic_filter", "level"}


@pytest.mark.parametrize("name", ["TieredMessageStore", "TieredReader"])
def test_help_says_what_each_method_raises(name: str) -> None:
    owner = getattr(tieredstore, name)
    public = {each for each in dir(owner) if not each.startswith("_")} - RAISES_NOTHING
    told = {each for each in public if re.search(r"[Rr]aise|Error", getattr(owner, each).__doc__)}
    assert not public - told
