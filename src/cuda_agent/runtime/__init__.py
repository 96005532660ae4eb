"""What runs finished kernels. The modules here need torch and the standard library only:
``cuda-agent export`` copies them into the package it writes.
"""
