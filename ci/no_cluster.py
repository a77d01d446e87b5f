"""A pytest plugin (``-p ci.no_cluster``) for tests that need no Ray cluster: none is started by accident.

Ray starts a cluster by itself in a process that calls it without one. That takes seconds and both cores, and hides that
a test has reached the real Ray.
"""

import os

os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # ray/_private/auto_init_hook.py
