"""Objects on fsspec's memory and local filesystems."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.errors import InvalidConfigError
from tieredstore.providers.fsspec import FsspecClient
from tieredstore.testing.object_client_contract import ObjectClientContract


class TestMemory(ObjectClientContract):
    def open_client(self) -> ObjectClient:
        return FsspecClient(f"memory://{uuid.uuid4().hex}/tier")


class TestLocal(ObjectClientContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def open_client(self) -> ObjectClient:
        return FsspecClient(f"file://{self.folder}/tier")

    def test_it_says_what_it_cannot(self) -> None:
        capabilities = self.open_client().capabilities
        assert not capabilities.create_only
        assert not capabilities.metadata
        assert not capabilities.atomic_put


def test_two_clients_of_one_root_see_the_same() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    FsspecClient(root).put("k", b"x")
    assert FsspecClient(root).head("k").size == 1


@pytest.mark.parametrize("url", ["", "bucket/tier", "://x", "memory://../x"])
def test_a_root_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError):
        FsspecClient(url)


def test_a_filesystem_that_is_not_installed_is_named() -> None:
    with pytest.raises(InvalidConfigError, match="nosuch"):
        FsspecClient("nosuch://bucket").head("k")
