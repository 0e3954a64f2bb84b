"""How much may be on its way to the tier at a time, over all queues.

What lives here: `UploadBudget`. What the bytes are is for whoever takes them.
"""

from __future__ import annotations

import threading


class UploadBudget:
    """Bytes in memory and uploads under way: never more than allowed.

    Nobody waits here: who is refused comes again when something was given back. One batch larger
    than everything allowed is let through alone. Any thread may call anything.
    """

    def __init__(self, *, bytes_max: int, uploads_max: int) -> None:
        self.bytes_max = bytes_max
        self.uploads_max = uploads_max
        self._bytes = 0
        self._uploads = 0
        self._guard = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._bytes

    @property
    def uploads(self) -> int:
        return self._uploads

    def take(self, count: int, *, instead_of: int = 0) -> bool:
        """Take bytes, giving back `instead_of` of them; nothing happens where that is refused."""
        with self._guard:
            others = self._bytes - instead_of
            if others and others + count > self.bytes_max:
                return False
            self._bytes = others + count
            return True

    def give(self, count: int) -> None:
        with self._guard:
            self._bytes -= count

    def start_upload(self) -> bool:
        with self._guard:
            if self._uploads >= self.uploads_max:
                return False
            self._uploads += 1
            return True

    def end_upload(self) -> None:
        with self._guard:
            self._uploads -= 1
