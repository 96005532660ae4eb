"""Looking at a machine, a candidate or a result: doctor, explain, compare."""
