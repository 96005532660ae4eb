"""Evaluation: a policy over a taskset, through the agent and the judge (docs/evaluation.md)."""
