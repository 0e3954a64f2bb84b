"""CRC-32, as Java's and zlib's: the quickest function for it that is installed.

What lives here: `crc32`. What records keep of it, without the sign bit, is in `checksum`.
"""

from __future__ import annotations

try:  # a quarter of zlib's time for a kilobyte: docs/decisions/0012-crc-from-isa-l.md
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
