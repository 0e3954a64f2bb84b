"""Fixtures. Some of these tests also run on an object store, and some die at its requests."""

from tests.crash_stores import stores
from tests.on_objects import backend, moto, pytest_generate_tests, s3_environment

__all__ = ["backend", "moto", "pytest_generate_tests", "s3_environment", "stores"]
