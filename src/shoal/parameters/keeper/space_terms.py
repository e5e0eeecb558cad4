"""What a server group knows of a job that uses it: the name, the key that opens its space, the quota. No torch.

The key crosses connections sealed (`wire.derived_keys`). Not here: what a server holds of the job (`space`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.wire.derived_keys import seal, unseal
from shoal.wire.keeper_messages import SealedSpace, SpaceEnd


@dataclass(frozen=True)
class SpaceTerms:
    job: str  # name of the space
    key: str = field(repr=False)  # held by the job's workers; derived from the job's token, unknown here
    quota: int = 0  # bytes of parameters and state over all servers; 0: no limit
    end: SpaceEnd | None = None  # None: the group serves the job

    def sealed(self, session: bytes) -> SealedSpace:
        """Seal the key for the peer of the connection that has this session key."""
        key = seal(session, self.key, _about(self.job, self.quota))
        return SealedSpace(job=self.job, key=key, quota=self.quota, end=self.end)

    @staticmethod
    def opened(sealed: SealedSpace, session: bytes) -> SpaceTerms:
        """`WireError`: the key was not sealed for this connection."""
        key = unseal(session, sealed.key, _about(sealed.job, sealed.quota))
        return SpaceTerms(sealed.job, key, sealed.quota, sealed.end)


def _about(job: str, quota: int) -> bytes:
    return f"space {quota} {job}".encode()
