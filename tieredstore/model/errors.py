"""The errors of tieredstore, sorted by what the caller can do about them.

    TieredStoreError
    ├─ InvalidConfigError (ValueError)            fix the settings
    │  └─ UnknownNameError                        name one that is there
    ├─ InvalidArgumentError (ValueError)          fix the call
    ├─ StoreClosedError                           you closed it
    │  └─ OtherProcessError                       .opened_by: open it in this process
    ├─ OffsetOutOfRangeError (ValueError)         .offset .minimum .maximum
    ├─ BodyNotPlainError (ValueError)             a producer's compressed body; the record is sound
    ├─ SegmentError                               .path
    │  ├─ SegmentNotFoundError (FileNotFoundError)
    │  ├─ SegmentSealedError                      roll to the next
    │  ├─ PositionMismatchError                   .expected .actual: repair, go on
    │  └─ SegmentCorruptError                     .position: stop, audit
    ├─ BackendError                               .path .operation .reason
    │  ├─ BackendUnavailableError                 try again (the only one that is retried)
    │  └─ BackendRefusedError                     do not (credentials, bucket, quota, name)
    └─ MetadataError                              .path: the catalogue cannot be used
       └─ CatalogueLockedError                    end the other process, or wait for it

Absence is a status, failure an exception. Every message is one line; the facts are attributes.
"""

from __future__ import annotations

from typing import Any

from tieredstore.model.printable import printable


class TieredStoreError(Exception):
    """Base of every error that tieredstore raises on purpose.

    Errors travel between processes (Spark, multiprocessing), so they pickle with their facts. Names
    in a message may come from a producer: they are shown on one line, whatever they contain.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[TieredStoreError], args: tuple[Any, ...], facts: dict[str, Any]
) -> TieredStoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class InvalidConfigError(TieredStoreError, ValueError):
    """A setting is unknown, of the wrong kind or out of its range."""


class InvalidArgumentError(TieredStoreError, ValueError):
    """An argument is not what the call needs: not a topic, whole number, filter or message."""


class UnknownNameError(InvalidConfigError):
    """The named topic, broker or cluster does not exist."""


class StoreClosedError(TieredStoreError):
    """The store, provider or segment was closed before this call."""


class OtherProcessError(StoreClosedError):
    """The store was opened before a fork: it is the parent's, and the child must not use it."""

    def __init__(self, name: str, *, opened_by: int) -> None:
        super().__init__(
            f"{name}: process {opened_by} opened it, and a process forked from that one must not "
            "use it: open what is needed after the fork"
        )
        self.opened_by = opened_by


class OffsetOutOfRangeError(TieredStoreError, ValueError):
    """An offset or a byte range is outside the existing data."""

    def __init__(self, what: str, *, offset: int, minimum: int, maximum: int) -> None:
        super().__init__(f"{what}: {offset} is not within {minimum} to {maximum}")
        self.offset = offset
        self.minimum = minimum
        self.maximum = maximum


class BodyNotPlainError(TieredStoreError, ValueError):
    """A body that its producer compressed cannot be decompressed; the stored record is sound."""


class SegmentError(TieredStoreError):
    """An error about one segment."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path


class SegmentNotFoundError(SegmentError, FileNotFoundError):
    """The segment has no bytes in the backend."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "there is no such segment")


class SegmentSealedError(SegmentError):
    """A sealed segment takes no more writes: roll to the next."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "the segment is sealed")


class PositionMismatchError(SegmentError):
    """A write did not start at the true end of the segment: repair and continue."""

    def __init__(self, path: str, *, expected: int, actual: int) -> None:
        super().__init__(path, f"write at {expected}, but the segment ends at {actual}")
        self.expected = expected
        self.actual = actual


class SegmentCorruptError(SegmentError):
    """Bytes are damaged: stop and audit. Never hidden by a fallback."""

    def __init__(self, path: str, reason: str, *, position: int) -> None:
        super().__init__(path, f"damaged at byte {position}: {reason}")
        self.position = position


class BackendError(TieredStoreError):
    """The backend did not carry out a request."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.path = path
        self.operation = operation
        self.reason = reason


class BackendUnavailableError(BackendError):
    """A transient failure with an unknown outcome: worth another try."""


class BackendRefusedError(BackendError):
    """The backend will refuse again: permissions, names, quota, a full disk."""


class FencedError(BackendRefusedError):
    """Another writer has taken over this broker's tier: this one writes nothing more, ever."""

    def __init__(self, path: str, operation: str, *, epoch: int) -> None:
        super().__init__(path, operation, f"fenced by epoch {epoch}: another writer has taken over")
        self.epoch = epoch


class MetadataError(TieredStoreError):
    """The catalogue cannot be read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path

    @property
    def is_damage(self) -> bool:
        """Whether the catalogue itself is damaged; else the system or another writer refused."""
        return not isinstance(self.__cause__, OSError)


class CatalogueLockedError(MetadataError):
    """Another process has the catalogue open for writing. Nothing is wrong with it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another process has it open")

    @property
    def is_damage(self) -> bool:
        return False


def system_says(error: BaseException) -> str:
    """Why the system refused, without the error number, and without the file, which the message
    names anyway."""
    return getattr(error, "strerror", None) or str(error)


class refused_by_system:  # noqa: N801 - used as `with refused_by_system(path, "open"):`
    """Turns errors of the operating system into BackendRefusedError. Our own errors pass unchanged.

    For the outermost call, which knows what was to be done. Python raises RuntimeError if a thread
    cannot be started; its subclasses, such as RecursionError, are bugs and pass too. A generator
    instead of this class would take 1 of the 20 microseconds of a put.
    """

    __slots__ = ("_operation", "_path")

    def __init__(self, path: str, operation: str) -> None:
        self._path = path
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, TieredStoreError):
            return
        if isinstance(error, OSError):
            raise BackendRefusedError(self._path, self._operation, system_says(error)) from error
        if type(error) is RuntimeError:
            raise BackendRefusedError(self._path, self._operation, str(error)) from error
