"""Bringing a model from a source into the store, once, and going on after a kill."""
