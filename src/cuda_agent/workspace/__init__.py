"""The folder an agent works in: its files, a candidate frozen, and the scripts' service."""
