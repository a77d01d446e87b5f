"""Which job of a file is meant."""

from ebbtide.cli.terminal.errors import BadInput
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.job_section import JobSection


def pick(config: PoolFile, name: str | None) -> JobSection:
    """The job called ``name``, or the only one.

    Raises:
        BadInput: there is none, or more than one to choose from.
    """
    names = [job.name for job in config.jobs]
    if not names:
        raise BadInput("the file has no jobs: add one under `jobs`")
    if name is None and len(names) == 1:
        return config.jobs[0]
    if name is None:
        raise BadInput(f"the file has {len(names)} jobs ({', '.join(names)}): say which with --job NAME")
    if name not in names:
        raise BadInput(f"the file has no job {name!r}; it has {', '.join(names)}")
    return config.jobs[names.index(name)]
