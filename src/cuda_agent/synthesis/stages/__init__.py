"""The stages of synthesis, each resumable over JSON lines: compose, filter, dedupe, export; and all in one."""
