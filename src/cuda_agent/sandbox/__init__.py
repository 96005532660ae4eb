"""Processes that run code we do not trust."""
