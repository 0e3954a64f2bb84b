"""Test suites for third parties' providers, metadata stores and message stores."""
