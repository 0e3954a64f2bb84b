"""The key index of the tier: its files are filled, compacted, uploaded and searched."""

from typing import TYPE_CHECKING

from tieredstore.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from tieredstore.index.local_file import IndexStoreFile
    from tieredstore.index.store import IndexStore
    from tieredstore.index.store import IndexStore as IndexStoreService

__all__ = ["IndexStore", "IndexStoreFile", "IndexStoreService"]

_HOMES = {
    "IndexStore": "store.IndexStore",
    "IndexStoreFile": "local_file.IndexStoreFile",
    "IndexStoreService": "store.IndexStore",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
