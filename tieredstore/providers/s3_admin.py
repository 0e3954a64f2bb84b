"""Sets up a bucket with botocore; no read or write passes through here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidConfigError,
    TieredStoreError,
)
from tieredstore.model.printable import log_of
from tieredstore.providers.s3_errors import error_of_exception, error_of_reply, one_line
from tieredstore.providers.s3_settings import (
    ObjectStoreSettings,
    end_redirects,
    keep_clients_quiet,
)

log = log_of(__name__)

ABORT_RULE: Final = "tieredstore-abandoned-uploads"
ABORT_DAYS: Final = 2
# Replies of stores without such rules: they say so, do not understand the request, or take it for
# a request to create the bucket, which exists.
_NO_RULES_STATUS: Final = (400, 405, 501)
_NO_RULES_CODE: Final = "BucketAlreadyExists"
# From which size on the other rules of the bucket move objects; it is set together with them.
_MINIMUM: Final = "TransitionDefaultMinimumObjectSize"


def create_bucket(settings: ObjectStoreSettings, *, abort_days: int = ABORT_DAYS) -> bool:
    """Create a private bucket that deletes abandoned uploads. Idempotent.

    An existing bucket of ours is unchanged except for this rule; its other rules are kept. Returns
    whether the store accepts the rule; a warning is logged if it has no such rules.
    """
    client = admin_client(settings)
    if not _is_there(client, settings):
        _make(client, settings)
    try:
        abort_abandoned_uploads(settings, days=abort_days)
    except NoRulesError as error:
        log.warning("%s; run audit --repair now and then to remove abandoned uploads", error)
        return False
    return True


def _is_there(client: Any, settings: ObjectStoreSettings) -> bool:
    """Whether the bucket is there and ours. Unless these keys may ask, it says no."""
    from botocore.exceptions import ClientError

    with _translated(settings, "create_bucket"):
        try:
            client.head_bucket(Bucket=settings.bucket)
        except ClientError:
            return False
    return True


def _make(client: Any, settings: ObjectStoreSettings) -> None:
    """Not for a bucket of ours: AWS's oldest region would reset the rights of others to it."""
    asked: dict[str, Any] = {"Bucket": settings.bucket}
    region = client.meta.region_name
    if region and region not in ("us-east-1", "aws-global"):
        asked["CreateBucketConfiguration"] = {"LocationConstraint": region}
    with _translated(settings, "create_bucket"):
        try:
            client.create_bucket(**asked)
        except client.exceptions.BucketAlreadyOwnedByYou:
            pass
        except client.exceptions.BucketAlreadyExists:
            # Some stores say so even if the bucket is ours; another owner's refuses this request.
            client.head_bucket(Bucket=settings.bucket)


class NoRulesError(BackendRefusedError):
    """The store cannot delete abandoned uploads by itself."""


def abort_abandoned_uploads(settings: ObjectStoreSettings, *, days: int = ABORT_DAYS) -> None:
    """Have the store itself delete uploads below the prefix when they are `days` old.

    NoRulesError if it has no such rules.
    """
    if days < 1:
        raise InvalidConfigError("abort_days: a store counts whole days, from 1")
    client = admin_client(settings)
    rule = {
        "ID": f"{ABORT_RULE}-{settings.prefix.strip('/')}".strip("-"),
        "Status": "Enabled",
        "Filter": {"Prefix": settings.prefix},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
    }
    with _translated(settings, "put_bucket_lifecycle"):
        there = _lifecycle(client, settings.bucket)
        others = [kept for kept in there.get("Rules", []) if kept.get("ID") != rule["ID"]]
        client.put_bucket_lifecycle_configuration(
            Bucket=settings.bucket,
            LifecycleConfiguration={"Rules": [*others, rule]},
            **{name: there[name] for name in (_MINIMUM,) if name in there},
        )


def admin_client(settings: ObjectStoreSettings) -> Any:
    """botocore's client with these settings. Without keys, it uses the usual chain."""
    try:
        sessions: Any = importlib.import_module("botocore.session")
        config: Any = importlib.import_module("botocore.config").Config
    except ImportError as error:
        raise InvalidConfigError("this needs botocore: pip install 'tieredstore[s3]'") from error
    style = "path" if settings.path_addressing else settings.addressing
    with _translated(settings, "connect"):
        client = sessions.get_session().create_client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region or None,
            aws_access_key_id=str(settings.access_key) or None,
            aws_secret_access_key=str(settings.secret_key) or None,
            aws_session_token=str(settings.session_token) or None,
            config=config(
                connect_timeout=settings.connect_timeout_ms / 1000,
                read_timeout=settings.request_timeout_ms / 1000,
                retries={"total_max_attempts": 2},
                s3={"addressing_style": style},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
    end_redirects(client)
    return client


def _lifecycle(client: Any, bucket: str) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    try:
        reply: dict[str, Any] = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] == "NoSuchLifecycleConfiguration":
            return {}
        raise
    return reply


@contextmanager
def _translated(settings: ObjectStoreSettings, operation: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    keep_clients_quiet()
    try:
        yield
    except ClientError as error:
        said = error.response.get("Error", {})
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(said.get("Code", ""))
        ours: TieredStoreError
        no_rules = status in _NO_RULES_STATUS or code == _NO_RULES_CODE
        if operation == "put_bucket_lifecycle" and no_rules:
            reason = one_line(f"{status} {code}: this store takes no rule for abandoned uploads")
            ours = NoRulesError(settings.bucket, operation, reason)
        else:
            ours = error_of_reply(settings.bucket, operation, status=status, code=code)
        raise ours from (None if settings.leaks_into(repr(error)) else error)
    except BotoCoreError as error:
        unanswered = error_of_exception(settings.bucket, operation, error)
        text = one_line(str(error))
        raise unanswered or BackendRefusedError(settings.bucket, operation, text) from error
