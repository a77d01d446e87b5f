"""How much of the shared directory the pool may take, and how fast each node may use it."""

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import SizeBytes
from ebbtide.config.sections.section import Section

CHUNK_BYTES = 16 * 2**20  # what is moved at once (``ebbtide.storage.transport.transport``)


class StorageSection(Section):
    """Bounds on what lies in the shared directory; what would go beyond one is refused before a byte is written."""

    models_max: SizeBytes | None = Field(
        None,
        description='Bytes of all that is in the store, or "20 TB": models, their flat forms, compiled code. '
        "Default null: whatever the filesystem takes.",
    )
    checkpoints_max_per_job: SizeBytes | None = Field(
        None,
        description='Bytes of all checkpoints of one job, or "2 TB": of those that stay, see `keep_checkpoints`, and '
        "of the one that is being written. Default null: whatever the filesystem takes.",
    )
    keep_free: SizeBytes = Field(
        2**30,
        description='Bytes of the filesystem that models and checkpoints leave to others, or "1 GiB". Default 1 GiB: '
        "the ledger and logs of many days.",
    )
    bytes_per_s_per_node: SizeBytes | None = Field(
        None,
        description='Bytes per second that one node may read and write, or "5 GB", all of its replicas and jobs '
        "together; for those that start from then on. Default null: whatever the filesystem gives.",
    )

    @field_validator("bytes_per_s_per_node")
    @classmethod
    def _a_chunk_each_second(cls, value: int | None) -> int | None:
        if value is not None and value < CHUNK_BYTES:
            raise PydanticCustomError(
                "range",
                "{given} bytes per second are less than one chunk, which has {chunk}: no replica would start in time",
                {"given": value, "chunk": CHUNK_BYTES},
            )
        return value
