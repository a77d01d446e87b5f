"""The flat form: one file for each rank with its parameters as they lie in memory.

Its key, layout, capture, publication and how it is found.
"""
