"""RocketMQ's local store: commit log, consume queues and key index, byte for byte."""
