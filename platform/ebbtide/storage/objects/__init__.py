"""Immutable objects of the store: written, published by rename, named by refs, opened and read.

Of transports it knows the interface only.
"""
