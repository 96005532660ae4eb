"""Composition: seeds stacked into tasks, at random or by a language model, as source a person would write."""
