"""What is asked for: targets, input laws and modules in, tasks out."""
