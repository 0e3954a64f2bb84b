"""Contracts and the kit around them: segments, providers, catalogue, message stores, runtime."""
