"""Care: what keeps a store whole: recovery, checkpoint, sizes and lock, retention."""
