"""The operating system's errors as ours.

What lives here: the one place that knows which of them are worth another try.
"""

from __future__ import annotations

import errno
from typing import Final

from tieredstore.model.errors import BackendError, BackendRefusedError, BackendUnavailableError

_TRANSIENT: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


def backend_error(path: str, operation: str, error: OSError) -> BackendError:
    """Whether another try is worth it, is for the error number to say."""
    kind = BackendUnavailableError if error.errno in _TRANSIENT else BackendRefusedError
    return kind(path, operation, error.strerror or str(error))
