"""A plugin that changes each message, which shows that the broker bypasses it for none."""

from __future__ import annotations

from dataclasses import replace

from tieredstore import AbstractPluginMessageStore, Message, PutResult


class ShoutingStore(AbstractPluginMessageStore):
    """Puts bodies in capital letters."""

    def put_message(self, message: Message) -> PutResult:
        return super().put_message(replace(message, body=message.body.upper()))
