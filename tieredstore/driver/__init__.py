"""Contracts and what supports them: segments, providers, catalogue, message stores, runtime."""
