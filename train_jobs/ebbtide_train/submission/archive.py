"""What is kept of a job's submission on the shared directory, so that the job outlives its driver and its cluster.

``jobs/<name>/submission.json`` says what Ray was told when the job was submitted; ``jobs/<name>/working_dir.zip`` is
the folder its driver ran in. Both are replaced by rename, and the JSON names the zip's hash: a crash between the two
leaves a pair that does not fit, which is told and never run.

Kept of the environment are only the variables that the submission itself named, and of those none that looks like a
secret: a job that needs one cannot be submitted again by anybody but its author. One archive per name: a few KB and at
most ``ZIP_LIMIT_BYTES``, removed when the job ends.

Not guaranteed: what a driver reads outside its working directory; the CPUs that Ray reserved for the driver itself.
"""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ebbtide.pool.ids import JobName

FORMAT = 1
ZIP_LIMIT_BYTES = 100 << 20  # Ray's own limit for a working_dir is 500 MiB; code and small data need a hundredth
FILE, ZIP = "submission.json", "working_dir.zip"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every entry, so that equal folders give equal zips
_CHUNK_BYTES = 1 << 20

Kind = Literal["file", "script", "plain"]  # by ebbtide_train.run, by `ray job submit`, a process of its own


class Unkept(ValueError):
    """The submission cannot be kept; the message says why in words for the job's author."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job was submitted. ``refusal``: why nobody can submit it again; empty if that can be done."""

    job: str
    incarnation: str  # of the driver that wrote this
    kind: Kind
    entrypoint: str = ""  # shell command
    submission_id: str = ""  # Ray's, of the driver that wrote this; empty for a process of its own
    runtime_env: Mapping[str, Any] = field(default_factory=dict)  # without working_dir, where the zip has it
    metadata: Mapping[str, str] = field(default_factory=dict)
    zip_sha256: str = ""  # empty: there is no zip
    refusal: str = ""
    max_restores: int = 3  # submissions by the pool, of one driver's life
    archived_s: float = 0.0  # seconds since 1970
    format: int = FORMAT


def kept_env(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a runtime_env, to be written down.

    Raises:
        Unkept: one of them looks like a secret.
    """
    secrets = sorted(name for name in variables if _SECRET.search(name))
    if secrets:
        raise Unkept(
            f"its runtime_env sets {', '.join(secrets)}, and secrets are not written down; have the job read "
            "them from a file on its nodes"
        )
    return dict(variables)


class Archive:
    """The kept submissions of one pool's shared directory."""

    def __init__(self, shared_dir: Path, *, zip_limit_bytes: int = ZIP_LIMIT_BYTES) -> None:
        self._shared, self._limit_bytes = shared_dir, zip_limit_bytes

    def keep(self, submission: Submission, working_dir: Path | None) -> Submission:
        """Write the submission and its folder; gives what was written: with a ``refusal`` if the folder is too large.

        Raises:
            OSError: the shared directory refuses. What was kept before may then no longer fit together.
        """
        folder = self._folder(submission.job)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (folder.parent, folder):
            path.chmod(0o700)
        draft = folder / f".{ZIP}.{os.getpid()}"
        try:
            if working_dir is not None and not submission.refusal:
                try:
                    submission = replace(submission, zip_sha256=self._pack(working_dir, draft))
                except Unkept as error:
                    submission = replace(submission, refusal=str(error))
            known = self._known_good(submission) if submission.refusal else None
            if known is not None:
                submission = replace(known, incarnation=submission.incarnation)
            elif submission.zip_sha256:
                os.replace(draft, folder / ZIP)
            else:
                (folder / ZIP).unlink(missing_ok=True)
            _write(folder / FILE, json.dumps(asdict(submission), indent=2))
        finally:
            draft.unlink(missing_ok=True)
        return submission

    def read(self, job: str) -> Submission | None:
        """The kept submission; None if there is none.

        Raises:
            Unkept: it is damaged or of another version.
            OSError: the shared directory does not answer.
        """
        path = self._folder(job) / FILE
        try:
            record = json.loads(path.read_text())
            found = Submission(**record)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise Unkept(f"{path} is no submission ({error}); submit the job again by hand") from error
        if found.format != FORMAT or found.job != job:
            raise Unkept(f"{path} is of format {found.format} and job {found.job!r}; submit the job again by hand")
        return found

    def _known_good(self, submission: Submission) -> Submission | None:
        """What was kept of this very submission before: Ray may forget a driver's folder while the driver lives."""
        if not submission.submission_id:
            return None
        try:
            known = self.read(submission.job)
        except Unkept:
            return None
        fits = known is not None and not known.refusal and known.submission_id == submission.submission_id
        return known if fits else None

    def working_dir(self, submission: Submission) -> Path | None:
        """The zip that belongs to it; None if it has none.

        Raises:
            Unkept: it is missing or another one.
        """
        if not submission.zip_sha256:
            return None
        path = self._folder(submission.job) / ZIP
        try:
            found = _sha256(path)
        except FileNotFoundError:
            found = "nothing"
        if found != submission.zip_sha256:
            raise Unkept(f"{path} is not the working directory of that submission; submit the job again by hand")
        return path

    def restorable(self) -> frozenset[JobName]:
        """Names of the jobs that can be submitted again. Reads the small files only.

        Raises:
            OSError: the shared directory does not answer.
        """
        return frozenset(JobName(one.job) for one in self._all() if not one.refusal)

    def forget(self, job: str) -> None:
        """Remove all that is kept of the job; nothing happens if there is nothing."""
        folder = self._folder(job)
        (folder / FILE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def _all(self) -> Iterator[Submission]:
        try:
            names = sorted(entry.name for entry in os.scandir(self._shared / "jobs") if entry.is_dir())
        except FileNotFoundError:
            return
        for name in names:
            try:
                found = self.read(name)
            except Unkept:
                continue
            if found is not None:
                yield found

    def _folder(self, job: str) -> Path:
        if os.sep in job or job in ("", ".", ".."):
            raise Unkept(f"{job!r} cannot be a folder's name")
        return self._shared / "jobs" / job

    def _pack(self, source: Path, draft: Path) -> str:
        """Zip the folder; its hash."""
        size_bytes = 0
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
            os.chmod(draft, 0o600)
            for path in _files(source, without=self._shared):
                size_bytes += path.stat().st_size
                if size_bytes > self._limit_bytes:
                    raise Unkept(
                        f"its working directory has more than {self._limit_bytes >> 20} MiB; keep data outside of it"
                    )
                entry = zipfile.ZipInfo(str(path.relative_to(source)), _EPOCH)
                entry.external_attr = (path.stat().st_mode & 0o7777) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as file, packed.open(entry, "w") as into:
                    shutil.copyfileobj(file, into, _CHUNK_BYTES)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        return _sha256(draft)


def _files(source: Path, *, without: Path) -> Iterable[Path]:
    """Every plain file below, in order; what Python leaves behind and the shared directory stay out."""
    shared = without.resolve()
    for folder, inner, names in os.walk(source):
        inner[:] = sorted(n for n in inner if n != "__pycache__" and (Path(folder) / n).resolve() != shared)
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file():
                yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
