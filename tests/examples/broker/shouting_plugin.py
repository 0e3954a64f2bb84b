"""A plugin that changes each message: to see that the broker passes none by."""

from __future__ import annotations

from dataclasses import replace

from tieredstore import AbstractPluginMessageStore, Message, PutResult


class ShoutingStore(AbstractPluginMessageStore):
    """Bodies in capital letters."""

    def put_message(self, message: Message) -> PutResult:
        return super().put_message(replace(message, body=message.body.upper()))
