"""Whether an object store may be written to: proved once, recorded beside the data."""

from __future__ import annotations

import threading
import uuid
import zlib
from typing import Final

from tieredstore.driver.certify import PREFIX, Certificate, certify
from tieredstore.driver.object_client import ObjectCapabilities, ObjectClient
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SegmentNotFoundError,
)
from tieredstore.model.printable import log_of

log = log_of(__name__)

MODES: Final = ("require", "warn", "off")
PAGE_KEYS: Final = 1_001  # one more than a listing's page holds
_FORMAT: Final = 2  # of the proof: one of another number is asked for again

_REFUSED: Final = (
    "it stays refused until `tieredstore certify --again` passes; certify=warn writes nevertheless"
)


class Certification:
    """Asks a store for proof before the first write, once for each kind of client.

    * The verdict is an object beside the data, so no later process asks again. A store that failed
      stays refused: a race that two writers won once is proof, and a lucky second time is none.
    * Only `examined` with `again` asks anew. A store that is refused is looked up at every write,
      so a running broker goes on when the verdict has changed.
    * What a client says itself that its store does not do is no reason to refuse: it is logged.
    * With `warn` a store that fails is written to nevertheless; with `off` none is asked.
    """

    def __init__(self, mode: str = "require", *, page_keys: int = PAGE_KEYS) -> None:
        if mode not in MODES:
            raise InvalidConfigError(f"certify: {mode!r} is none of {', '.join(MODES)}")
        self._mode = mode
        self._page_keys = page_keys
        self._guard = threading.Lock()
        self._is_done = mode == "off"
        self._found: Certificate | None = None  # by this process, which asks once

    def check(self, client: ObjectClient) -> None:
        """BackendRefusedError for a store that is not to be trusted, at every call."""
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
    """The verdict on a store, for an operator. A store that failed before is not asked again.

    A failure is kept, and refuses later writers. What passed is kept only in place of a failure,
    with `again`: nothing else is left behind.
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
    """Keep what was found; a failure that another process has kept meanwhile counts more."""
    kept = kept_verdict(client)
    if found.passed and kept is not None and not kept.passed:
        return kept
    keep(client, found)
    return found


def certificate_key(client: ObjectClient) -> str:
    """Where the proof for this client of this store is kept.

    Another client may do otherwise, and a bucket may have been copied from another store.
    """
    return f"{PREFIX}/certificate-{zlib.crc32(client.describe().encode()):08x}.json"


def keep(client: ObjectClient, certificate: Certificate) -> None:
    """Have later processes find it, in place of an older one."""
    text = f"{_FORMAT}\n{certificate.to_json()}"
    nonce = {"nonce": uuid.uuid4().hex}
    client.put(certificate_key(client), text.encode(), metadata=nonce, if_absent=False)


def kept_verdict(client: ObjectClient) -> Certificate | None:
    """What is kept beside the data; None where there is none of today's format."""
    key = certificate_key(client)
    try:
        data = client.get_range(key, 0, client.head(key).size)
    except (SegmentNotFoundError, OffsetOutOfRangeError):
        return None
    try:
        number, _, text = data.decode().partition("\n")
        found = Certificate.from_json(text) if number == str(_FORMAT) else None
    except ValueError:
        return None
    return found if found is not None and found.client == client.describe() else None


def _problems(certificate: Certificate, known: ObjectCapabilities) -> list[str]:
    """What failed and was promised."""
    excused: set[str] = set()
    if not known.metadata:
        excused.add("metadata")
    if not known.create_only:
        excused.add("create-only-race")
    return [found.kind for found in certificate.failures if found.kind not in excused]
