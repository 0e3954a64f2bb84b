"""The vocabulary: values, settings, errors. It imports no other package of ours."""
