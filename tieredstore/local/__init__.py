"""RocketMQ's local store, embedded: commit log, consume queues and key index, byte for byte."""

from tieredstore.local.config import LocalConfig
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore

__all__ = ["LocalConfig", "LocalMessageStore", "LocalReader"]
