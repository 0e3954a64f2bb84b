"""The words: values, settings, errors. It imports nothing of ours."""
