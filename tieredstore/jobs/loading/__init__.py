"""Parts of `load`: staging, final offsets, and making all of it visible at once."""
