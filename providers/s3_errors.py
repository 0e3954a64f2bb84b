"""What a reply of S3 means for the caller: by status and error code, whoever the client is.

What lives here: the one table of both S3 clients. How a client's exceptions carry status and code
is each client's own.
"""

from __future__ import annotations

from typing import Final

from tieredstore.driver.object_client import ObjectExistsError
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    SegmentNotFoundError,
    TieredStoreError,
)

_ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound", ""})
# Codes under a status of 4xx that another try may mend all the same.
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
# How stores without a batch delete refuse one.
_NO_BATCH_DELETE: Final = ("NotImplemented", "MissingContentMD5", "InvalidRequest", "MalformedXML")
_TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
REASON_CHARACTERS: Final = 200


def error_of_reply(
    key: str, operation: str, *, status: int, code: str, message: str = ""
) -> TieredStoreError:
    """Our error for a reply that is none of success.

    A missing bucket is refused and never taken for a missing object. A conflict (409) says that
    another request was under way: worth another try. A range beyond the end is not decided here:
    it needs the object's size.
    """
    if status == 404 and code in _ABSENT:
        return SegmentNotFoundError(key)
    if status == 412 or code == "PreconditionFailed":
        return ObjectExistsError(key)
    if status in (401, 403) and not (code or message):
        message = "keys are missing or wrong, or do not allow it"
    reason = one_line(f"{status} {code} {message}")
    transient = status in _TRANSIENT_STATUS or code in _TRANSIENT
    if transient or (status >= 500 and status not in (501, 505)):
        return BackendUnavailableError(key, operation, reason)
    return BackendRefusedError(key, operation, reason)


def certificate_refused(key: str, operation: str, reason: str) -> BackendRefusedError:
    """What no other try mends: the certificate of the store is of an authority that is unknown."""
    return BackendRefusedError(
        key,
        operation,
        f"the store's certificate is not trusted: {one_line(reason)}; where it has an authority of"
        " its own, name that to the system, or by AWS_CA_BUNDLE (s3fs) and SSL_CERT_FILE (obstore)",
    )


def no_batch_delete(error: BackendRefusedError) -> bool:
    """Whether a store refused a batch delete because it was one."""
    return any(code in str(error) for code in _NO_BATCH_DELETE)


def one_line(text: str) -> str:
    """A foreign text as part of a message: one line, not too long."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 3] + "..."
