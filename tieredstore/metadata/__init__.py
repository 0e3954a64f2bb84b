"""Implementations of `MetadataStore`: where a tier's catalogue lies.

Import it only as `tieredstore.metadata`.
"""

if __name__ != "tieredstore.metadata":
    raise ImportError("import it as tieredstore.metadata: a second copy has classes of its own")

from tieredstore.metadata.files import OpenReport
from tieredstore.metadata.json_store import JsonMetadataStore

__all__ = ["JsonMetadataStore", "OpenReport"]
