"""Parts of `reindex`: sorted runs of keys, and compacted files from them."""
