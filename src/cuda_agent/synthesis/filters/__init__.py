"""Execution filters: what is measured of a task in disposable processes, and pure predicates over it."""
