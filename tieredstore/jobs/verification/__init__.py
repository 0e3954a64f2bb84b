"""Parts of `verify`: reading everything, and what is told of it."""
