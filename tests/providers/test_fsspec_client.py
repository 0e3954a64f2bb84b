"""Objects on fsspec's memory and local filesystems."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tieredstore.driver.object_client import ObjectClient
from tieredstore.model.errors import BackendUnavailableError, InvalidConfigError
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


class AilingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A remote file system whose connection breaks; it is listed folder by folder."""

    protocol = "ailing"
    store: dict[str, Any] = {}  # noqa: RUF012 - as fsspec has it
    pseudo_dirs = [""]  # noqa: RUF012
    broken: dict[str, Exception] = {}  # noqa: RUF012 - by the end of a path
    find = fsspec.AbstractFileSystem.find

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._meet(path)
        return super().ls(path, detail=detail, **kwargs)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._meet(path)
        return super().cat_file(path, *args, **kwargs)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> Any:
        self._meet(path)
        return super().pipe_file(path, value, mode=mode, **kwargs)

    def rm_file(self, path: str) -> None:
        self._meet(path)
        super().rm_file(path)

    def _meet(self, path: str) -> None:
        for end, error in self.broken.items():
            if path.rstrip("/").endswith(end):
                raise error


@pytest.fixture
def ailing() -> Iterator[FsspecClient]:
    fsspec.register_implementation("ailing", AilingFileSystem, clobber=True)
    with FsspecClient(f"ailing://{uuid.uuid4().hex}") as client:
        yield client
    AilingFileSystem.broken.clear()


@pytest.mark.parametrize("folder", ["/orders", "/orders/new"])
def test_a_listing_that_lacks_a_folder_is_an_error(ailing: FsspecClient, folder: str) -> None:
    for key in ("orders/1", "orders/new/2", "c/3"):
        ailing.put(key, b"x")
    AilingFileSystem.broken[folder] = ConnectionResetError("gone")
    with pytest.raises(BackendUnavailableError, match="gone"):
        list(ailing.list())
    AilingFileSystem.broken[folder] = FileNotFoundError("deleted meanwhile")
    assert "c/3" in [found.key for found in ailing.list()]


class OddError(Exception):
    """No OSError, like the errors of Google's and Azure's file systems."""


def test_an_error_of_the_file_systems_own_is_one_of_the_backend(ailing: FsspecClient) -> None:
    ailing.put("orders/1", b"x")
    AilingFileSystem.broken.update({"/orders": OddError("503"), "/1": OddError("503")})
    for call in (
        lambda: ailing.get_range("orders/1", 0, 1),
        lambda: ailing.put("orders/1", b"y", if_absent=False),
        lambda: list(ailing.list()),
    ):
        with pytest.raises(BackendUnavailableError, match="503"):
            call()
    assert isinstance(ailing.delete_many(["orders/1"])["orders/1"], BackendUnavailableError)


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (ConnectionRefusedError("nobody there"), BackendUnavailableError),
        (OddError("no such user"), BackendUnavailableError),
        (TypeError("missing 1 required argument: 'host'"), InvalidConfigError),
    ],
)
def test_a_file_system_that_cannot_be_opened_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, ours: type[Exception]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(fsspec, "filesystem", refuse)
    client = FsspecClient("ftp://host/tier")
    with pytest.raises(ours):
        client.head("k")
    with pytest.raises(ours):
        list(client.list())
