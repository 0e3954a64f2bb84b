"""Turns a failed request to an object store into one of our errors, with its cause and remedy.

All clients use the same words. A message ends with what to do, if that is known.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from tieredstore.driver.object_client import KeysExpiredError, ObjectExistsError
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentNotFoundError,
    TieredStoreError,
)

REASON_CHARACTERS: Final = 200


class Cause(Enum):
    """Why no reply came, and the remedy. `{at}` is the address, `{host}` the host in it."""

    REFUSED = "{at} refuses the connection; see that the store runs and listens at this port"
    NO_NAME = "no host {host} is known to DNS; see the name in the endpoint, and this machine's DNS"
    NO_TLS = "{at} does not speak TLS; give the endpoint as http://, or the port that has TLS"
    SILENT = "{at} does not answer; see that the store runs, and that no firewall is in between"
    BROKEN = "{at} closed the connection; see the store's own log, and whether it wants https://"


# Words of TLS libraries for a certificate of an unknown authority.
_UNKNOWN_AUTHORITY: Final = ("self-signed", "issuer", "CaUsedAsEndEntity", "UnknownIssuer")
_UNCERTIFIED: Final = (
    "where it has an authority of its own, name that to the system, or by AWS_CA_BUNDLE (s3fs) and "
    "SSL_CERT_FILE (obstore)"
)
_KEYS: Final = (
    "keys come from the settings (TIEREDSTORE_ACCESS_KEY, TIEREDSTORE_SECRET_KEY), else from where "
    "AWS's tools have them"
)
_CLOCK: Final = "this machine's clock and the store's are too far apart; set the clock, by NTP"
_EXPIRED: Final = f"the keys have expired, so get new ones; {_KEYS}"
_REGION: Final = "the bucket is in another region; see the setting region"
_ELSEWHERE: Final = (
    "the store is elsewhere: in another region, or at another address, such as https:// instead of"
    " http://; see the settings region and endpoint"
)
# Explanations of the store's error codes.
_MEANINGS: Final = {
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": _EXPIRED,
    "InvalidAccessKeyId": f"the store knows no such key id; {_KEYS}",
    "InvalidToken": _EXPIRED,
    "NoSuchBucket": (
        "see its name (--bucket) and the address (--endpoint); `tieredstore create-bucket` makes it"
    ),
    "PermanentRedirect": _ELSEWHERE,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "SignatureDoesNotMatch": f"the secret key is not that of the key id; {_KEYS}",
    "TokenRefreshRequired": _EXPIRED,
}
# Messages about a wrong clock, under codes about the signature or permissions.
_SKEWED: Final = re.compile(
    r"signature (has )?expired|not yet current|request has expired", re.IGNORECASE
)
_NOT_ALLOWED: Final = f"these keys do not allow it; {_KEYS}"
_UNTOLD: Final = f"the keys are missing or wrong, or do not allow it; {_KEYS}"
_FAILING: Final = "the store was reached and fails at this request; its own log says why"

_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound", ""})
# Requests for something that may be absent. For any other, 404 means that there is no bucket: also
# for a batch delete, whose reply says of each key whether it is absent.
_OF_AN_OBJECT: Final = frozenset(
    {
        "abort_multipart_upload",
        "delete_object",
        "get",
        "get_object",
        "head",
        "head_object",
    }
)
_HEADS: Final = ("head", "head_object")
# Codes for which another try may help, even if the status is 4xx.
_TRANSIENT: Final = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "EC2ThrottledException",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
    }
)
_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# How stores without a batch delete refuse one.
_NO_BATCH_DELETE: Final = ("NotImplemented", "MissingContentMD5", "InvalidRequest", "MalformedXML")
_ADDRESS: Final = re.compile(r"https?://[^/\s\"'?]+")
_CHAIN_MAX: Final = 16


def page_instead(key: str, operation: str) -> BackendUnavailableError:
    """Our error for a reply that something in between us and the store has made."""
    return BackendUnavailableError(key, operation, "the reply is a page: it is no store's")


def error_of_reply(
    key: str,
    operation: str,
    *,
    status: int,
    code: str,
    message: str = "",
    has_body: bool = False,
) -> TieredStoreError:
    """Our error for a reply that is not a success.

    A missing bucket is refused, and never taken for a missing object. So is an address without a
    store: a listing or a put cannot meet a missing object. A conflict (409) means that another
    request was under way, so another try may help. A range beyond the end is not handled here, as
    that needs the object's size. If a reply has a body, as one to a HEAD never has, that gives the
    code: one without is the page of a proxy that did not reach the store.
    """
    if status == 404 and code in _ABSENT and operation in _OF_AN_OBJECT:
        if has_body and operation not in _HEADS and code in ("404", ""):
            return page_instead(key, operation)
        return SegmentNotFoundError(key)
    if status == 412 or code == "PreconditionFailed":
        return ObjectExistsError(key)
    if code == str(status):  # the reply to a HEAD has no body that could say more
        code = message = ""
    reason = one_line(f"{status} {code} {message}")
    meaning = _meaning(status, code, message)
    if meaning:
        reason = f"{reason}: {meaning}"
    transient = status in _TRANSIENT_STATUS or code in _TRANSIENT
    if transient or (status >= 500 and status not in (501, 505)):
        return BackendUnavailableError(key, operation, reason)
    if meaning in (_EXPIRED, _CLOCK):
        return KeysExpiredError(key, operation, reason)
    return BackendRefusedError(key, operation, reason)


def error_of_key(key: str, operation: str, code: str, message: str = "") -> TieredStoreError:
    """Our error for one key of a batch, which has a code but no status of its own."""
    status = 500 if code in _TRANSIENT else 403
    return error_of_reply(key, operation, status=status, code=code, message=message)


@contextmanager
def explained(ask: Callable[[], object]) -> Iterator[None]:
    """If a HEAD is refused, raise what `ask` is refused with: the reply to a HEAD has no body that
    says why, such as that keys have expired."""
    try:
        yield
    except BackendRefusedError:
        try:
            ask()
        except BackendRefusedError:
            raise
        except TieredStoreError:
            pass
        raise


def error_of_connection(key: str, operation: str, cause: Cause, text: str) -> TieredStoreError:
    """Our error for a request without a reply; `text` is the client's message, with the address."""
    found = _ADDRESS.search(text)
    at = found[0] if found else "the store"
    host = at.partition("://")[2].partition(":")[0] or "of this name"
    return BackendUnavailableError(key, operation, cause.value.format(at=at, host=host))


def certificate_refused(key: str, operation: str, reason: str) -> BackendRefusedError:
    """Our error for a certificate that this machine does not trust: another try cannot help."""
    is_unknown = any(word in reason for word in _UNKNOWN_AUTHORITY)
    why = "its authority is unknown to this machine" if is_unknown else one_line(reason)
    return BackendRefusedError(
        key, operation, f"the store's certificate is not trusted: {why}; {_UNCERTIFIED}"
    )


def error_of_exception(key: str, operation: str, error: BaseException) -> TieredStoreError | None:
    """Our error for a request of a Python client that got no reply; None if the cause is unknown.
    The clients' errors have the system's own error as a cause."""
    text = str(error)
    below: BaseException | None = error
    cause: Cause | None = None
    for _ in range(_CHAIN_MAX):
        if below is None:
            break
        said = getattr(below, "verify_message", "")  # for a certificate that the system refused
        if said:
            return certificate_refused(key, operation, said)
        cause = _cause_of(below) or cause
        below = below.__cause__ or below.__context__
    return None if cause is None else error_of_connection(key, operation, cause, text)


def _cause_of(error: BaseException) -> Cause | None:
    if isinstance(error, socket.gaierror):
        return Cause.NO_NAME
    if isinstance(error, ssl.SSLError):
        return Cause.NO_TLS if "WRONG_VERSION_NUMBER" in str(error) else None
    if isinstance(error, ConnectionRefusedError):
        return Cause.REFUSED
    if isinstance(error, ConnectionError) or type(error).__name__ == "ConnectionClosedError":
        return Cause.BROKEN
    if isinstance(error, TimeoutError):
        return Cause.SILENT
    return None


def no_batch_delete(error: TieredStoreError) -> bool:
    """Whether a store refused a batch delete because it has none."""
    return any(code in str(error) for code in _NO_BATCH_DELETE)


def one_line(text: str) -> str:
    """A foreign text as one line of limited length, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 3] + "..."


def _meaning(status: int, code: str, message: str) -> str:
    if _SKEWED.search(message):
        return _CLOCK
    if code in _MEANINGS:
        return _MEANINGS[code]
    if status in _REDIRECTS:
        return _ELSEWHERE
    if status == 404 and code in _ABSENT:
        return f"no bucket is there; {_MEANINGS['NoSuchBucket']}"
    if status in (401, 403):
        return _NOT_ALLOWED if code else _UNTOLD
    if status >= 500 and status not in (501, 505):
        return _FAILING
    return ""
