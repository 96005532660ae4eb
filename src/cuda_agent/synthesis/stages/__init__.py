"""The stages of synthesis, each resumable over JSON lines, and all of them in one run."""
