"""Task files in KernelBench's form, ours: what ``cuda-agent demo`` optimises."""
