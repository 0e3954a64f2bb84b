"""Decides whether an object store may be written to, by a test whose result is kept beside the
data."""

from __future__ import annotations

import threading
import uuid
import zlib
from typing import Final

from tieredstore.driver.certify import PREFIX, Certificate, certify
from tieredstore.driver.object_client import ObjectCapabilities, ObjectClient, OtherBytesError
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)

MODES: Final = ("require", "warn", "off")
PAGE_KEYS: Final = 1_001  # one more than a page of a listing holds
_FORMAT: Final = 2  # of a kept verdict: with any other number, the store is tested again

_REFUSED: Final = (
    "it stays refused until `tieredstore certify --again` passes; certify=warn writes nevertheless"
)


class Certification:
    """Tests a store before the first write, once for each kind of client.

    * The verdict is an object beside the data, so later processes do not test again. A store that
      failed stays refused: if two writers won a race once, a lucky second test proves nothing.
    * Only `examined` with `again` tests anew. While a store is refused, the verdict is read at
      every write, so a running broker continues when it changes.
    * What the client itself says that its store cannot do is logged, but is no reason to refuse.
    * With `warn`, a store that fails is used all the same; with `off`, none is tested.
    """

    def __init__(self, mode: str = "require", *, page_keys: int = PAGE_KEYS) -> None:
        if mode not in MODES:
            raise InvalidConfigError(f"certify: {mode!r} is none of {', '.join(MODES)}")
        self._mode = mode
        self._page_keys = page_keys
        self._guard = threading.Lock()
        self._is_done = mode == "off"
        self._found: Certificate | None = None  # by this process, which tests once

    def check(self, client: ObjectClient) -> None:
        """Raise BackendRefusedError, at every call, if the store must not be trusted."""
        if self._is_done:
            return
        with self._guard:
            if not self._is_done:
                self._judge(self._verdict(client), client)
                self._is_done = True

    def _verdict(self, client: ObjectClient) -> Certificate:
        kept = kept_verdict(client)
        if kept is not None:
            return kept
        if self._found is None:
            log.info("%s: asking for proof that it can hold a tier", client.describe())
            self._found = certify(client, page_keys=self._page_keys)
        return _settled(client, self._found)

    def _judge(self, certificate: Certificate, client: ObjectClient) -> None:
        summary = certificate.summary()
        if _problems(certificate, client.capabilities):
            if self._mode == "require":
                raise BackendRefusedError(client.describe(), "write", f"{summary}; {_REFUSED}")
            log.warning("%s; it is used nevertheless", summary)
        elif not certificate.passed:
            log.warning("%s; its client says so itself: run one writer only", summary)
        else:
            log.info("%s", summary)


def examined(
    client: ObjectClient, *, again: bool = False, page_keys: int = PAGE_KEYS
) -> Certificate:
    """The verdict on a store, for an operator. A store that failed before is tested again only with
    `again`.

    A failure is kept, so that later writers are refused. A pass is kept only with `again`, in place
    of an earlier verdict; otherwise nothing is left behind.
    """
    kept = kept_verdict(client)
    if kept is not None and not kept.passed and not again:
        return kept
    found = certify(client, page_keys=page_keys)
    if again and kept is not None:
        keep(client, found)
        return found
    return found if found.passed else _settled(client, found)


def _settled(client: ObjectClient, found: Certificate) -> Certificate:
    """Keep a verdict; a failure that another process has kept meanwhile takes precedence."""
    kept = kept_verdict(client)
    if found.passed and kept is not None and not kept.passed:
        return kept
    keep(client, found)
    return found


def certificate_key(client: ObjectClient) -> str:
    """The key of the verdict on this client and this store.

    Another client may behave differently, and a bucket may be a copy from another store.
    """
    return f"{PREFIX}/certificate-{zlib.crc32(client.describe().encode()):08x}.json"


def keep(client: ObjectClient, certificate: Certificate) -> None:
    """Store a verdict for later processes, in place of an older one."""
    text = f"{_FORMAT}\n{certificate.to_json()}"
    nonce = {"nonce": uuid.uuid4().hex}
    client.put(certificate_key(client), text.encode(), metadata=nonce, if_absent=False)


def kept_verdict(client: ObjectClient) -> Certificate | None:
    """The verdict that is kept beside the data; None if there is none in the present format, or if
    the store cannot show it, as one that ignores ranges."""
    key = certificate_key(client)
    try:
        data = client.get_range(key, 0, client.head(key).size)
    except (SegmentNotFoundError, OffsetOutOfRangeError, OtherBytesError):
        return None
    try:
        number, _, text = data.decode().partition("\n")
        found = Certificate.from_json(text) if number == str(_FORMAT) else None
    except ValueError:
        return None
    return found if found is not None and found.client == client.describe() else None


def _problems(certificate: Certificate, known: ObjectCapabilities) -> list[str]:
    """The failures, except of what the client does not promise."""
    excused: set[str] = set()
    if not known.metadata:
        excused.add("metadata")
    if not known.create_only:
        excused.add("create-only-race")
    return [found.kind for found in certificate.failures if found.kind not in excused]
