"""Parts of `export`: files, their ledger, and where they go."""
