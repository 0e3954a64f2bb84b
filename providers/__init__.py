"""Implementations of `FileSegment` and `SegmentProvider`: where a tier's bytes lie.

Imported as `tieredstore.providers` and under no other name.
"""

if __name__ != "tieredstore.providers":
    raise ImportError("import it as tieredstore.providers: a second copy has classes of its own")
