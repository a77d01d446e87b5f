"""A process that counts into a file, for ever or up to a number: what was lost or repeated can be seen in the file.

usage: python -I -S counter.py FILE [LAST [EXTRA]]   EXTRA: child, pipe, socketpair, listen, udp, memory
"""

import os
import socket
import sys
import time

keep = []
extra = sys.argv[3] if len(sys.argv) > 3 else ""
if extra == "child" and os.fork() == 0:
    while True:
        time.sleep(0.01)
elif extra == "pipe":
    keep.append(os.pipe())
elif extra == "socketpair":
    keep.append(socket.socketpair())
elif extra in ("listen", "udp"):
    kind = socket.SOCK_STREAM if extra == "listen" else socket.SOCK_DGRAM
    keep.append(socket.socket(socket.AF_INET, kind))
    keep[-1].bind(("127.0.0.1", 0))
    if extra == "listen":
        keep[-1].listen(1)
elif extra == "memory":
    keep.append(os.urandom(1 << 20) * 64)
last = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 60
with open(sys.argv[1], "a") as file:
    for number in range(last + 1):
        file.write(f"{number}\n")
        file.flush()
        time.sleep(0.005)
