"""Who listens on a port of this machine, for an error that says what to do about it.

Not guaranteed: who it is, where it is another user's process (only root sees those) or one outside of this container.
"""

import psutil

from ebbtide.system.process import command_of

WORDS = 80  # characters of a command line


def port_holder(port: int) -> str:
    """ "process 123 (vllm serve ...)"; "" if it cannot be seen."""
    try:
        listening = [
            one
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        ]
    except (psutil.Error, OSError):
        return ""
    pid = next((one.pid for one in listening if one.pid), None)
    return f"process {pid} ({_command(pid)})" if pid else ""


def _command(pid: int) -> str:
    try:
        words = " ".join(" ".join(psutil.Process(pid).cmdline()).split())
    except psutil.Error:
        words = ""
    return (words if len(words) <= WORDS else f"{words[: WORDS - 3]}...") or command_of(pid)
