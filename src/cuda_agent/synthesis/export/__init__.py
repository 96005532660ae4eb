"""The set as files for others: Parquet in the public form, and its data card."""
