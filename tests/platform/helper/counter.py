"""A process that counts into a file, for ever or up to a number: what was lost or repeated can be seen in the file.

usage: python -I -S counter.py FILE [LAST [EXTRA]]   EXTRA: child, pipe, socketpair, listen, udp; several with commas
"""

import os
import socket
import sys
import time

keep: list[object] = []
extra = sys.argv[3].split(",") if len(sys.argv) > 3 else []
if "child" in extra and os.fork() == 0:
    while True:
        time.sleep(0.01)
if "pipe" in extra:
    keep.append(os.pipe())
if "socketpair" in extra:
    keep.append(socket.socketpair())
if "listen" in extra:
    keep.append(socket.create_server(("127.0.0.1", 0)))
if "udp" in extra:
    keep.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    keep[-1].bind(("127.0.0.1", 0))  # type: ignore[attr-defined]
last = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 60
with open(sys.argv[1], "a") as file:
    for number in range(last + 1):
        file.write(f"{number}\n")
        file.flush()
        time.sleep(0.005)
