"""RocketMQ's local store, embedded: commit log, consume queues and key index, byte for byte.

Here is the store as a whole. Its parts are in rooms; each imports only rooms below it:

    care             recovery, checkpoint, sizes and lock, retention
    dispatching      from the log into queues and index
    queues  keys     where messages are: by queue offset, by key
    log              every message, one behind the other
    records  files   the bytes of messages; files mapped into memory
"""

from tieredstore.local.config import LocalConfig
from tieredstore.local.local_message_store import LocalMessageStore
from tieredstore.local.local_reader import LocalReader

__all__ = ["LocalConfig", "LocalMessageStore", "LocalReader"]
