"""The report of evaluations: a text table, JSON, one HTML page."""
