"""Shared devices: the lease, and later the pools that join it."""
