"""A session's command for tests: a chain of hashes held in memory only, a line of it every 20 ms.

``chain.py FILE STEPS CODE [family | gpu FOLDER | ballast MIB]``. Run by its path. With ``family`` it also has a child,
and a grandchild that has left its process session and its parents; with ``gpu`` it has a child, and both use the GPU of
the fake driver whose folder that is; with ``ballast`` it has so much memory of its own, which nothing can pack. Whoever
loses, repeats or changes a step breaks the chain for good.
"""

import hashlib
import os
import sys
import time

EVERY_S = 0.02


def link(before: bytes, step: int) -> bytes:
    return hashlib.sha256(before + str(step).encode()).digest()


def check(text: str) -> int:
    """How many steps were done, each once, in order, in one memory."""
    state, lines = b"", text.splitlines()
    for step, line in enumerate(lines):
        state = link(state, step)
        assert line == f"{step} {state.hex()}", f"the chain is broken at step {step}: {line}"
    return len(lines)


def main() -> None:
    path, steps, code, *more = sys.argv[1:]
    if more == ["family"] and os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
        while True:
            time.sleep(0.05)
    if more[:1] == ["gpu"]:
        child = os.fork()
        os.open(f"{more[1]}/{os.getpid()}", os.O_CREAT | os.O_RDWR)
        while child == 0:
            time.sleep(0.05)
    ballast = os.urandom(int(more[1]) << 20) if more[:1] == ["ballast"] else b""
    state = b""
    with open(path, "a", buffering=1) as file:
        for step in range(int(steps)):
            state = link(state, step)
            file.write(f"{step} {state.hex()}\n")
            time.sleep(EVERY_S)
    print("the chain is done", "with its ballast" if ballast else "", flush=True)
    sys.exit(int(code))


if __name__ == "__main__":
    main()
