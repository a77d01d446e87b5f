"""A pytest plugin (``-p ci.many_examples``) for hunts: many examples for each property, see ``tests/examples.py``.

It is loaded before any test module, and these ask for their number of examples when they are loaded.
"""

import os

os.environ["HYPOTHESIS_PROFILE"] = "long"
