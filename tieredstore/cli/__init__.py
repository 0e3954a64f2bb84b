"""The command line: `tieredstore`, installed with the extra `cli`."""
