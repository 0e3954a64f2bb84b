"""The tier's files: append-only files made of segments, and the message queues kept in them.

Layer: container. It knows drivers and bytes, not brokers: who asks and when lives in `access`.
"""
