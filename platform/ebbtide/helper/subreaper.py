"""The helper takes in processes that it brought back, and clears away those that have ended.

CRIU leaves them without a parent. Left to process 1 of a container, which often waits for nobody, their zombies would
keep the pids that their next image needs. Source: prctl(2), PR_SET_CHILD_SUBREAPER.

Not guaranteed: that, after a kill of the helper: then they are process 1's.
"""

import ctypes
import os
import threading
import time

_PR_SET_CHILD_SUBREAPER = 36
_NOBODY_S = 0.05  # between looks while there is no child at all


def adopt_orphans() -> None:
    """From now on what this process's descendants leave behind becomes its child, and is waited for.

    A `subprocess.Popen` whose child was waited for here reports 0: nobody may go by its code.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    threading.Thread(target=_wait_for_all, name="waits-for-children", daemon=True).start()


def _wait_for_all() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(_NOBODY_S)
