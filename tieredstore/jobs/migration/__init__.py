"""Parts of `migrate`: plan, copy, journal, cut-over."""
