"""One line where Spark would print a hundred.

What lives here: `plain_failures`. Spark shows the traceback of a Python process that failed, unless
that process says otherwise; one that failed with an error of ours has nothing to show but its text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tieredstore.model.errors import TieredStoreError

_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_failures() -> Iterator[None]:
    """Errors of ours leave without what they were made from, and without a traceback.

    Spark ends a Python process after any failure, so what is set here hides nothing else.
    """
    try:
        yield
    except TieredStoreError as error:
        os.environ[_HIDE] = "1"
        raise error.with_traceback(None) from None
