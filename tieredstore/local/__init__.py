"""RocketMQ's local store, embedded: commit log, consume queues and key index, byte for byte."""

from tieredstore.local.config import LocalConfig
from tieredstore.local.local_message_store import LocalMessageStore
from tieredstore.local.local_reader import LocalReader

__all__ = ["LocalConfig", "LocalMessageStore", "LocalReader"]
