"""What is measured beyond RocketMQ's metrics: requests, retries, problems, index and catalogue.

What lives here: declarations, and the tuple of all of them. Who measures is told there: `retry`,
`object_requests` and, for all that is about a whole tier, `tier_gauges` of the access layer.
"""

from __future__ import annotations

from typing import Final

from tieredstore.driver.metrics import Metric, MetricKind

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_QUEUE = ("topic", "queue_id")
_OURS = "tieredstore_"

# Requests

OBJECT_REQUESTS = Metric(
    _OURS + "object_requests_total",
    _COUNTER,
    ("operation", "success"),
    meaning="Requests to an object store, each try by itself",
)
OBJECT_BYTES = Metric(
    _OURS + "object_bytes_total",
    _COUNTER,
    ("operation",),
    "bytes",
    meaning="Bytes that these requests moved",
)
OBJECT_BILL = Metric(
    _OURS + "object_requests_estimated_cost_total",
    _COUNTER,
    ("operation",),
    "dollars",
    meaning="What they cost by the price table of the settings",
)
RETRIES = Metric(
    _OURS + "retries_total",
    _COUNTER,
    ("operation",),
    meaning="Calls of a backend that were made again because the one before failed",
)

# Uploads

QUEUES = Metric(
    _OURS + "queues",
    _GAUGE,
    ("state",),
    meaning="Queues that are `ok`; `failing`, which is tried again; `stopped` until somebody looks",
)
QUEUE_PROBLEM = Metric(
    _OURS + "queue_problem",
    _GAUGE,
    (*_QUEUE, "state"),
    meaning="1 for each queue that is `failing` or `stopped`; others are not shown",
)
LOST_MESSAGES = Metric(
    _OURS + "lost_messages",
    _GAUGE,
    _QUEUE,
    meaning="Messages that the broker lost before they were uploaded; only queues with such gaps",
)
BUFFERED_BYTES = Metric(
    _OURS + "upload_buffered_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Bytes in memory that wait for their upload",
)
UPLOADS = Metric(_OURS + "uploads_under_way", _GAUGE, meaning="Uploads that have not ended yet")
HELD_LOG_BYTES = Metric(
    _OURS + "local_log_held_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="The broker's own log from the oldest message on that the tier still needs",
)

QUEUE_HELD_LOG_BYTES = Metric(
    _OURS + "queue_held_log_bytes",
    _GAUGE,
    _QUEUE,
    "bytes",
    meaning="The same from the oldest message of this queue on; only queues that wait",
)

# The key index

INDEX_FILES = Metric(
    _OURS + "index_files",
    _GAUGE,
    ("state",),
    meaning="Index files: `unsealed` is being filled, `sealed` waits for its upload, `uploaded`",
)
INDEX_BEHIND = Metric(
    _OURS + "index_behind",
    _GAUGE,
    meaning="Messages in the tier that the key index still has to take",
)
INDEX_PROBLEM = Metric(
    _OURS + "index_problem",
    _GAUGE,
    meaning="1 while index files cannot be uploaded or expired; the log says why",
)
FOOTER_CACHE_BYTES = Metric(
    _OURS + "index_footer_cache_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Copies of index footers on the broker's disk",
)

# The catalogue

JOURNAL_BYTES = Metric(
    _OURS + "catalogue_journal_bytes",
    _GAUGE,
    (),
    "bytes",
    meaning="Changes of the catalogue that are not in RocketMQ's JSON file yet",
)
SNAPSHOT_AGE = Metric(
    _OURS + "catalogue_snapshot_age",
    _GAUGE,
    (),
    "seconds",
    meaning="Since when that file is unchanged; nothing where there is none",
)
PUBLISHED = Metric(
    _OURS + "catalogue_publishes_total",
    _COUNTER,
    ("success",),
    meaning="How often the catalogue was published for readers elsewhere, or could not be",
)
PUBLISH_PROBLEM = Metric(
    _OURS + "catalogue_problem",
    _GAUGE,
    meaning="1 while the newest changes cannot be published; the log says why",
)

OUR_METRICS: Final[tuple[Metric, ...]] = (
    OBJECT_REQUESTS,
    OBJECT_BYTES,
    OBJECT_BILL,
    RETRIES,
    QUEUES,
    QUEUE_PROBLEM,
    LOST_MESSAGES,
    BUFFERED_BYTES,
    UPLOADS,
    HELD_LOG_BYTES,
    QUEUE_HELD_LOG_BYTES,
    INDEX_FILES,
    INDEX_BEHIND,
    INDEX_PROBLEM,
    FOOTER_CACHE_BYTES,
    JOURNAL_BYTES,
    SNAPSHOT_AGE,
    PUBLISHED,
    PUBLISH_PROBLEM,
)
