"""Evaluation: tasksets run through agent and judge, metrics, reports."""
