"""Evidence: what was shown to hold, by which run, on which code, and what must be shown again.

The rooms of the product never import this package, and it never imports them: it reads their source.
"""
