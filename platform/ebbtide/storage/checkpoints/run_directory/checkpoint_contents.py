"""Is this directory a committed checkpoint, whole and the one it is called? Without reading the tensors.

A checkpoint is an object of the store that lies under a name of its own: its manifest says of which run, epoch and
step it is, and its hashes are salted with that. So a checkpoint under another's name is `Corrupt`, and so is a chunk
of another checkpoint in its place.
"""

from ebbtide.storage.checkpoints.run_directory.run_paths import CheckpointId, RunPaths
from ebbtide.storage.errors import Corrupt, NotPublished
from ebbtide.storage.files.durable_files import read_small, telling
from ebbtide.storage.names import MANIFEST
from ebbtide.storage.objects.manifest import MAX_MANIFEST_BYTES, Kind, Manifest, parse_manifest
from ebbtide.storage.objects.object_contents import Contents, open_contents


def checkpoint_manifest(paths: RunPaths, wanted: CheckpointId) -> Manifest:
    """What a checkpoint consists of, whether it was committed or not.

    Raises:
        NotPublished: there is none.
        Corrupt: what it says of itself makes no sense, or is about another one.
        TransferFailed: it cannot be read.
    """
    directory = paths.checkpoint(wanted)
    path = directory / MANIFEST
    try:
        raw = read_small(path, MAX_MANIFEST_BYTES)
    except ValueError as error:  # guard: a manifest that is too long is damage
        raise Corrupt(f"this file is longer than any of its kind: {error}", path) from error
    except FileNotFoundError as error:
        with telling("look at", directory):
            is_there = directory.is_dir()
        if is_there:  # guard: a missing manifest of a checkpoint is damage, and not its absence
            raise Corrupt("this file of a committed checkpoint is missing", path) from error
        raise NotPublished(f"run {paths.run} has no checkpoint {wanted} in {paths.directory}") from error
    manifest = parse_manifest(raw, path)
    if (
        manifest.kind is not Kind.TRAINING
        # guard: a manifest of another run, epoch or step is damage
        or manifest.key != paths.key(wanted)
    ):
        raise Corrupt(f"this is the manifest of {manifest.kind.value} {manifest.key}", path)
    return manifest


def open_directory(paths: RunPaths, wanted: CheckpointId) -> Contents:
    """Check a checkpoint, except for the content of its files.

    Raises:
        NotPublished: there is none, or nobody committed it.
        Corrupt: something in it is not as it was committed; names the file.
        TransferFailed: it cannot be told.
    """
    return open_contents(paths.checkpoint(wanted), checkpoint_manifest(paths, wanted).id)
