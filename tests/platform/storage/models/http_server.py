"""A file server for tests: with or without listings, ranges and stamps, and with answers that fail."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Manners:
    """How a server behaves; may be changed while it runs.

    Attributes:
        fail: status codes that the next requests of the given path get, each once.
        requests: (method, path, range) of all.
        sent_bytes: of bodies.
    """

    listing: int = 200
    ranges: bool = True
    stamps: bool = True
    lengths: bool = True
    fail: dict[str, list[int]] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    sent_bytes: int = 0


class Answers(BaseHTTPRequestHandler):
    """Answers requests; the class is made anew for each server, with its folder and manners."""

    protocol_version = "HTTP/1.1"
    folder: Path
    manners: Manners

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """A listing, a file, or part of one."""
        wanted = self.headers.get("Range", "")
        self.manners.requests.append((self.command, self.path, wanted))
        path = self.folder / self.path.lstrip("/")
        if failures := self.manners.fail.get(path.name):
            self.answer(failures.pop(0), b"")
        elif path.is_dir():
            self.answer(self.manners.listing, self.page() if self.manners.listing == 200 else b"", "text/html")
        elif not path.is_file():
            self.answer(404, b"")
        else:
            content = path.read_bytes()
            self.stamp = f'"{hash(content):x}"' if self.manners.stamps else ""
            if self.manners.ranges and wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                self.answer(206, content[int(first) : int(last) + 1])
            else:
                self.answer(200, content)

    def page(self) -> bytes:
        """Links to all files, to the folder above, and to another server."""
        links = "".join(f'<a href="{one.name}">x</a>' for one in sorted(self.folder.iterdir()))
        return f'<a href="../">up</a><a href="http://elsewhere/x.json">y</a>{links}'.encode()

    def answer(self, status: int, body: bytes, kind: str = "application/octet-stream") -> None:
        """Send it."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if stamp := getattr(self, "stamp", ""):
            self.send_header("ETag", stamp)
        if self.manners.lengths:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.close_connection = True
        self.end_headers()
        if self.command == "GET":
            self.manners.sent_bytes += len(body)
            with suppress(OSError):
                self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Says nothing of clients that went away."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, Manners]]:
    """The URL of a folder, and the manners of its server."""
    manners = Manners()
    server = Server(("127.0.0.1", 0), type("Handler", (Answers,), {"folder": folder, "manners": manners}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", manners
    finally:
        server.shutdown()
        server.server_close()
