"""What holds for all tests of the local store: there is room on the disk, however full it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tieredstore.local import retention


@pytest.fixture(scope="session", autouse=True)
def room_on_the_disk() -> Iterator[None]:
    """Stores look at the disk when they open, and refuse puts where it is full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "disk_used_percent", lambda _path: 10)
        yield
