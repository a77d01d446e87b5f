"""The whole file: one pool, its gateway and policy, and everything that runs in it."""

from pydantic import Field, model_validator

from ebbtide.config.cross_checks import Parts, cross_check, over_capacity
from ebbtide.config.finding import text_path
from ebbtide.config.sections.endpoint_section import EndpointSection
from ebbtide.config.sections.gateway_section import GatewaySection
from ebbtide.config.sections.job_section import JobSection
from ebbtide.config.sections.key_section import KeySection
from ebbtide.config.sections.metrics_section import MetricsSection
from ebbtide.config.sections.policy_section import PolicySection
from ebbtide.config.sections.pool_section import PoolSection
from ebbtide.config.sections.section import Section
from ebbtide.config.sections.sessions_section import SessionsSection
from ebbtide.config.sections.team_section import TeamSection


class PoolFile(Section):
    """A pool and what runs in it; or, with only a pool's name and jobs, jobs for a running pool."""

    pool: PoolSection = Field(description="The GPUs and the cluster they are on.")
    gateway: GatewaySection = Field(GatewaySection(), description="The public HTTP face.")
    policy: PolicySection = Field(PolicySection(), description="How fast slots move.")
    metrics: MetricsSection = Field(
        MetricsSection(), description="Where the arbiter shows how the pool does, for Prometheus."
    )
    sessions: SessionsSection = Field(SessionsSection(), description="Interactive sessions, for `ebbtide run`.")
    endpoints: tuple[EndpointSection, ...] = Field((), description="LLMs that are served.")
    jobs: tuple[JobSection, ...] = Field((), description="Training jobs, for `ebbtide submit`.")
    keys: tuple[KeySection, ...] = Field((), description="API keys; none = anyone who reaches the port.")
    teams: tuple[TeamSection, ...] = Field(
        (), description="How teams' jobs share what endpoints leave; none = first come, first served."
    )

    @property
    def is_submission(self) -> bool:
        """Whether the file describes no pool of its own, only jobs for one that runs."""
        return self.pool.shared_dir is None

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "PoolFile":
        findings = cross_check(self._parts())
        if findings:
            raise ValueError("; ".join(finding.message for finding in findings))
        return self

    def beyond(self, slots: int) -> list[str]:
        """What the file promises that a pool of so many slots has not, each with its place and the numbers.

        A number of slots in the file is held against it when the file is read; ``all`` of a cluster are known later.
        """
        found = over_capacity(self._parts(), slots, self.pool.reserve)
        return [f"{text_path(one.loc)}: {one.message}" for one in found]

    def _parts(self) -> Parts:
        return Parts(
            pool=self.pool,
            gateway=self.gateway,
            endpoints=dict(enumerate(self.endpoints)),
            jobs=dict(enumerate(self.jobs)),
            keys=dict(enumerate(self.keys)),
            teams=dict(enumerate(self.teams)),
            names={kind: [(i, s.name) for i, s in enumerate(getattr(self, kind))] for kind in Parts.LISTS},
            has_keys=bool(self.keys),
        )
