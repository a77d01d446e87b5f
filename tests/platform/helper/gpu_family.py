"""A process that uses no GPU, and children of it that do or do not, as it is told on standard input, a word a line.

usage: python -I -S gpu_family.py USERS     USERS: the folder of a fake driver, see
`ebbtide_testing.gpu_driver.fake_users`

"user" makes a child that uses the GPU, "idle" one that does not, "below" one that does below one that does not. The pid
of the one that is meant is printed when it is up.
"""

import os
import signal
import sys


def born(users: str) -> None:
    """A child: use the GPU if there is a folder, say so, and stay."""
    if users:
        os.open(f"{users}/{os.getpid()}", os.O_CREAT | os.O_RDWR)
    os.write(1, f"{os.getpid()}\n".encode())
    while True:
        signal.pause()


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
for line in sys.stdin:
    word = line.strip()
    if os.fork() == 0:
        if word == "below" and os.fork():
            while True:
                signal.pause()
        born("" if word == "idle" else sys.argv[1])
