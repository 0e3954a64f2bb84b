"""Some of these tests run on an object store too."""

from tests.on_objects import backend, pytest_generate_tests, s3_endpoint, s3_environment

__all__ = ["backend", "pytest_generate_tests", "s3_endpoint", "s3_environment"]
