"""What ends one way of loading and begins the next.

::

    FlatUnusable    the flat form cannot be used, or made, here: load in checkpoint order, and say why
"""


class FlatUnusable(Exception):
    """The text says why, for one line of the log."""
