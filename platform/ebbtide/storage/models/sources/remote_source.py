"""Any filesystem that fsspec knows: s3://, gs://, http(s)://, hf://, ...

Reads are ranges, without fsspec's caches: each byte is fetched once. What comes back is measured, since a server may
ignore ranges or give less; until an HTTP server has proven that it serves ranges, it is asked in a way that stops
after what was wanted, and not after a whole file.

HTTP servers without listings (such as the hub of Hugging Face under ``/resolve/main``) are asked for the names that
every checkpoint has.

Not guaranteed: that fetching ends. Whoever calls has a deadline of its own; the thread is then left behind.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from ebbtide.storage.errors import Refused
from ebbtide.storage.models.sources.local_source import MAX_DEPTH, MAX_FILES
from ebbtide.storage.models.sources.source import Part, SourceChanged, SourceFile
from ebbtide.storage.remote.fsspec_calls import PAUSES_S, BackendFailed, FileMissing, ask
from ebbtide.storage.remote.urls import filesystem, without_secrets

T = TypeVar("T")
Entry = Mapping[str, Any]  # what a filesystem says of one file

# What filesystems call that which changes with the content; compared without case, "-" and "_".
_STAMPS = frozenset(
    (
        *("etag", "versionid", "generation", "contentmd5", "digest", "md5hash", "crc32c", "sha", "sha256"),
        *("blobid", "oid", "checksum", "mtime", "lastmodified", "lastwritetime", "modified", "modify"),
        *("updated", "modificationtime", "created"),
    )
)
# Asked for by name where a server does not list.
GUESSED = (
    *("config.json", "generation_config.json", "model.safetensors.index.json", "model.safetensors", "tokenizer.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("tokenizer.model", "chat_template.jinja", "chat_template.json", "preprocessor_config.json"),
    *("processor_config.json", "LICENSE", "README.md"),
)
_NO_LISTING = (403, 404, 405)
AT_ONCE = 8  # questions about files: each takes a round trip


class RemoteSource:
    """See `Source`."""

    def __init__(self, url: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises Refused: nobody knows such URLs here, or a package is missing; says which."""
        self.where, self._sleep = without_secrets(url), sleep
        self._fs, self._root = filesystem(url)
        self._is_http = not isinstance(self._fs.protocol, str) and "http" in self._fs.protocol
        self._serves_ranges = not self._is_http
        # Filesystems that are not made for many requests at once (async) may share state between reads.
        self._one_at_a_time = None if self._fs.async_impl else threading.Lock()

    def listing(self) -> list[SourceFile]:
        """See `Source.listing`; hidden files and directories are left out."""
        self._fs.invalidate_cache()
        found = self._walk(self._root, "", MAX_DEPTH)
        if self._is_http and not any(name.endswith(".safetensors") for name in found):
            found |= {name: {} for name in GUESSED}
        files = self._files(found)
        if not files:
            raise Refused(f"there are no files in {self.where}: name the directory that holds the model")
        return files

    def look_for(self, names: Iterable[str]) -> list[SourceFile]:
        """See `Source.look_for`."""
        return self._files({name: {} for name in names})

    def open(self, file: SourceFile) -> "RemoteReading":
        """See `Source.open`; nothing is asked yet."""
        return RemoteReading(self, file)

    def fetch(self, file: SourceFile, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of a file from each start to its end.

        Raises:
            Refused: the server ignores ranges.
            FileMissing, BackendFailed: they cannot be read.
        """
        path = self._path(file.name)
        fetch = self._fetch if self._serves_ranges else self._fetch_carefully

        def question() -> list[bytes]:
            answers = fetch(path, file.size_bytes, spans)
            for (start, end), answer in zip(spans, answers, strict=True):
                if len(answer) > end - start:
                    raise Refused(f"{self.where}: the server sends more than it is asked for; download the model first")
                if len(answer) < end - start:
                    raise EOFError(f"{len(answer)} of {end - start} bytes came, from byte {start} on")
            return answers

        return self._ask("read", file.name, question)

    def _fetch(self, path: str, _size_bytes: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        if self._one_at_a_time is None:
            answers = self._fs.cat_ranges([path] * len(spans), starts, ends, on_error="return")
        else:
            with self._one_at_a_time:
                answers = self._fs.cat_ranges([path] * len(spans), starts, ends, on_error="return")
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return list(answers)

    def _fetch_carefully(self, path: str, size_bytes: int, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        found = []
        with self._fs.open(path, "rb", size=size_bytes, cache_type="none") as file:
            for start, end in spans:
                file.seek(start)
                try:
                    found.append(file.read(end - start))
                except ValueError as error:
                    raise Refused(f"{self.where}: {error} Download the model first") from error
                self._serves_ranges |= start > 0
        return found

    def _walk(self, folder: str, prefix: str, depth: int) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        try:
            entries = self._ask("list", prefix or ".", lambda: self._fs.ls(folder, detail=True))
        except (FileMissing, BackendFailed) as error:
            if self._is_http and (isinstance(error, FileMissing) or error.status in _NO_LISTING):
                return found
            if isinstance(error, FileMissing):
                raise Refused(f"there is no {self.where}/{prefix}") from None
            raise
        for entry in entries:
            full = str(entry["name"]).rstrip("/")
            name = full.rpartition("/")[2].partition("?")[0]
            if full == folder.rstrip("/") and len(entries) == 1 and entry.get("size"):
                raise Refused(f"{self.where} is a file: name the directory that holds the whole model")
            # Object stores may have an empty object in the place of the directory itself.
            if not name or name.startswith(".") or full == folder.rstrip("/"):
                continue
            if entry.get("type") != "directory":
                found[prefix + name] = entry
            elif depth > 1 and not self._is_http:  # links of a page lead anywhere
                found |= self._walk(full, f"{prefix}{name}/", depth - 1)
            if len(found) > MAX_FILES:
                raise Refused(f"{self.where} has more than {MAX_FILES} files: name the directory of one model")
        return found

    def _files(self, entries: Mapping[str, Entry]) -> list[SourceFile]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(self._file, entries, entries.values())
            return sorted(file for file in found if file is not None)

    def _file(self, name: str, entry: Entry) -> SourceFile | None:
        if entry.get("size") is None:
            try:
                entry = self._ask("look at", name, lambda: self._fs.info(self._path(name)))
            except FileMissing:
                return None
        size = entry.get("size")
        if not isinstance(size, int) or size < 0:
            raise Refused(f"{self.where}/{name}: the server does not say how long it is; download the model first")
        return SourceFile(name, size, stamp_of(entry))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _ask(self, action: str, name: str, question: Callable[[], T]) -> T:
        return ask(action, f"{self.where}/{name}", question, self._sleep, pauses_s=PAUSES_S)


class RemoteReading:
    """See `Reading`."""

    def __init__(self, source: RemoteSource, file: SourceFile) -> None:
        self._source, self._file = source, file

    def read(self, parts: Sequence[Part]) -> None:
        """See `Reading.read`."""
        where = f"{self._source.where}/{self._file.name}"
        wanted = [part for part in parts if len(part.memory)]
        if not wanted:
            return
        try:
            answers = self._source.fetch(self._file, [(part.offset, part.offset + len(part.memory)) for part in wanted])
        except FileMissing as error:
            raise SourceChanged(where, "is gone") from error
        for part, answer in zip(wanted, answers, strict=True):
            part.memory[:] = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def stamp_of(entry: Entry) -> str:
    """What a filesystem says of a file that changes with its content; empty if nothing."""
    found = {
        plain: value
        for key, value in entry.items()
        if (plain := key.lower().replace("-", "").replace("_", "")) in _STAMPS and value not in (None, "")
    }
    return " ".join(f"{key}={found[key]}" for key in sorted(found))
