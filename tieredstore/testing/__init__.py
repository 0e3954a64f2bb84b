"""Test suites for providers, metadata stores and message stores that others write."""
