"""Stage 1: seed operators found by walking the installed libraries, each tried until its rules are known."""
