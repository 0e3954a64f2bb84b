"""Hypothesis strategies for the values that the codecs accept."""

from __future__ import annotations

from hypothesis import strategies as st

from tieredstore.model.values import Host

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT32 = st.integers(0, 2**31 - 1)

# This includes lone surrogates, which Java's strings may hold.
ANY_TEXT = st.text(st.characters())
PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"]))

HOSTS = st.builds(
    Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), INT32
)
