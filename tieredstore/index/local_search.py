"""Asking an index file that is still on the broker's disk.

What lives here: `ask_local`: whether the file may have answers, and what is believed of it.
"""

from __future__ import annotations

from tieredstore.index.foreign_times import foreign_times, undated, with_true_times
from tieredstore.index.hits import IndexHit
from tieredstore.index.key_search import Asked
from tieredstore.index.store_file import IndexStoreFile
from tieredstore.model.values import INT64_MAX


def ask_local(file: IndexStoreFile, asked: Asked) -> list[IndexHit]:
    """A file that RocketMQ began is asked for all times: see `foreign_times`."""
    if file.notes is None:
        begin = file.begin_timestamp
        items = file.matches(asked.text, begin=-INT64_MAX, end=INT64_MAX)
        times = foreign_times(begin=begin, end=max(begin, file.end_timestamp))
        return asked.newest(with_true_times(items, times, begin=asked.begin, end=asked.end))
    held = file.times
    if held is not None:
        slack = 0 if held.exact else 999
        if not held.overlaps(asked.begin - slack, asked.end + slack):
            return []
        if held.outruns_seconds(file.begin_timestamp):
            items = file.matches(asked.text, begin=-INT64_MAX, end=INT64_MAX)
            return asked.newest(undated(items, last=held.last))
    items = file.matches(asked.text, begin=asked.begin, end=asked.end)
    return asked.newest(items, file.lateness)
