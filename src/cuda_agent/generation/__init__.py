"""Generation in token space: many prompts at once, ids and exact log-probabilities out.

``contract`` says what an engine is; ``slots`` is ours, over torch and transformers; ``server`` speaks to an
OpenAI-compatible server. Nothing here imports torch until one of those modules is imported.
"""
