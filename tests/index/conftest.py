"""Fixtures. Some of these tests also run on an object store."""

from tests.on_objects import backend, moto, pytest_generate_tests, s3_environment

__all__ = ["backend", "moto", "pytest_generate_tests", "s3_environment"]
