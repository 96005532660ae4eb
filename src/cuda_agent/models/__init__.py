"""Models on disk: fetched to a folder of transformers, listed, exported with adapters merged.

Nothing here imports torch until a model is converted or merged.
"""
