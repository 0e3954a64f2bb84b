"""Processes that die at requests, in memory and over HTTP."""

from tests.crash_stores import moto, s3_environment, stores

__all__ = ["moto", "s3_environment", "stores"]
