"""A hub for tests: as much of Hugging Face's HTTP API as an import asks for, over directories ``org/name``."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40


class Hub(BaseHTTPRequestHandler):
    """Answers requests; the class is made anew for each server, with its folder and what it was asked for."""

    protocol_version = "HTTP/1.1"
    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        """As GET, without the body."""
        self.do_GET()

    def do_GET(self) -> None:
        """What is known of a model, its files, or one of them."""
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repository = self.folder / "/".join(parts[2:4] if api else parts[:2])
        if not repository.is_dir():
            self.answer(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif api and "tree" in parts:
            self.answer(200, json.dumps([_about(file) for file in sorted(repository.iterdir())]).encode())
        elif api:
            self.answer(
                200, json.dumps({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": [], "tags": []}).encode()
            )
        else:
            self.file(repository / "/".join(parts[4:]))

    def file(self, path: Path) -> None:
        """All of it, or a range."""
        content = path.read_bytes()
        headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, content, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
        self.answer(206, content[begin : end + 1], headers)

    def answer(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        """Send it."""
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests print what they need."""


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


def _about(file: Path) -> dict[str, object]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _digest(file)}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A hub of the models below ``folder``: its address for ``HF_ENDPOINT``, and the paths that it was asked for."""
    asked: list[str] = []
    handler = type("OneHub", (Hub,), {"folder": folder, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
