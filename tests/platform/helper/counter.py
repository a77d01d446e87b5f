"""A process that counts into a file, for ever or up to a number: what was lost or repeated can be seen in the file.

usage: python -I -S counter.py FILE [LAST [EXTRA [USERS]]]   EXTRA: child, pipe, socketpair, listen, udp, gpu; several
with commas. With gpu a child of it uses the GPU of the fake driver whose folder USERS is.

With tcp or tcp6 each number goes to a child and back, over a connection of the loopback device, before it is written.
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
if "gpu" in extra and os.fork() == 0:
    with open(f"{sys.argv[4]}/{os.getpid()}", "w"):
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
friend: socket.socket | None = None
if "tcp" in extra or "tcp6" in extra:
    door = socket.create_server(("127.0.0.1", 0))
    if "tcp6" in extra:
        door = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    if os.fork() == 0:
        other, _ = door.accept()
        while text := other.recv(64):
            other.sendall(text)
        os._exit(0)
    friend = socket.create_connection(("127.0.0.1", door.getsockname()[1]))
last = int(sys.argv[2]) if len(sys.argv) > 2 else 1 << 60
with open(sys.argv[1], "a") as file:
    for number in range(last + 1):
        if friend is not None:
            friend.sendall(b"%d\n" % number)
            number = int(friend.recv(64))
        file.write(f"{number}\n")
        file.flush()
        time.sleep(0.005)
