"""Settings of the parameter-server strategy: which values each may have, and which settings go together. Pure.

A mistake raises a `UsageError` that names the setting, its value and the nearest value that works.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings import texts
from shoal.settings.codec_settings import CodecSettings
from shoal.settings.kind_settings import AllSettings
from shoal.settings.setting_checks import MOST_LOCAL, one_of, size_of
from shoal.settings.strategy_settings import StrategyKind, StrategySettings
from shoal.values import Address

CONSISTENCIES = ("synchronous", "asynchronous")
SCALINGS = ("lr", "gradient", "none")
MOST_STALENESS = 10**9


class ParameterServerSettings(StrategySettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "parameter servers"

    servers: Annotated[
        str, Meta(description="parameter servers: how many to start, or HOST:PORT of a group that is running")
    ] = ""
    servers_token: Annotated[
        str, Meta(description="file with the token of that group; `shoal servers start` prints its name")
    ] = ""
    replicas: Annotated[int, Meta(description="servers that hold each parameter; all but one may die at once")] = 1
    consistency: Annotated[
        str, Meta(description="synchronous (all workers' gradients make one update) or asynchronous (each its own)")
    ] = "synchronous"
    staleness: Annotated[
        str, Meta(description="updates by which a worker may be ahead of the slowest; implies asynchronous")
    ] = ""
    staleness_scaling: Annotated[
        str, Meta(description="what to scale down in a late update: lr (the learning rate), gradient or none")
    ] = "lr"
    noise: Annotated[
        float, Meta(description="standard deviation of noise that each asynchronous push adds to its gradient")
    ] = 0.0
    normalize: Annotated[bool, Meta(description="scale the gradient of each asynchronous push to norm 1")] = False
    server_memory: Annotated[
        str,
        Meta(description="memory of each server, such as 2GB; default an even share of 90% of the free memory"),
    ] = ""
    server_limit: Annotated[
        float, Meta(description="seconds of silence after which a parameter server counts as lost")
    ] = 1.5
    server_quota: Annotated[
        str,
        Meta(description="memory for the job's parameters and state on all servers, such as 4GB; default no limit"),
    ] = ""

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Numbers of servers and of updates become text; in Python and TOML a user writes them as integers."""
        texts = {name: str(given[name]) for name in ("servers", "staleness") if type(given.get(name)) is int}
        implied = {"consistency": "asynchronous"} if texts.get("staleness", given.get("staleness")) else {}
        return {**implied, **given, **texts}

    @property
    def is_synchronous(self) -> bool:
        """Whether the gradients of all workers make one update together."""
        return self.consistency == "synchronous"

    @property
    def manners(self) -> Manners:
        """Workers connect to servers only, not to each other."""
        return Manners(every=1 if self.is_synchronous else None, updates_elsewhere=True, connects_workers=False)

    @property
    def staleness_bound(self) -> int | None:
        """Updates by which a worker may be ahead of the slowest one; None: no bound."""
        return int(self.staleness) if self.staleness else None

    @property
    def server_count(self) -> int:
        """How many parameter servers the job starts itself."""
        return int(self.servers) if re.fullmatch(r"[0-9]{1,9}", self.servers) else 0

    @property
    def server_group(self) -> Address | None:
        """The address of a group of servers that is already running; None: the job starts its own servers."""
        if not self.servers or re.fullmatch(r"[0-9]{1,9}", self.servers):
            return None
        return parse_address(self.servers, named="--servers")

    def check_values(self) -> None:
        one_of("consistency", self.consistency, CONSISTENCIES)
        one_of("staleness-scaling", self.staleness_scaling, SCALINGS)
        address = self.server_group
        if self.servers and address is None and not 1 <= self.server_count <= MOST_LOCAL:
            raise UsageError(texts.bad_server_count(self.servers, MOST_LOCAL))
        if address is not None and not address.port:
            raise UsageError(texts.bad_servers(self.servers))
        if not 1 <= self.replicas <= MOST_LOCAL:
            raise UsageError(texts.out_of_range("replicas", self.replicas, 1, MOST_LOCAL))
        if self.staleness and (
            not re.fullmatch(r"[0-9]{1,10}", self.staleness) or int(self.staleness) > MOST_STALENESS
        ):
            raise UsageError(texts.bad_staleness(self.staleness))
        if not 0 <= self.noise <= 1e6:  # refuses nan too
            raise UsageError(texts.bad_noise(self.noise))
        if not 1 <= self.server_limit <= 3600:
            raise UsageError(texts.out_of_range("server-limit", self.server_limit, 1, 3600, "seconds"))
        size_of(self.server_memory or "1B", named="--server-memory")
        size_of(self.server_quota or "1B", named="--server-quota")

    def check_together(self, job: AllSettings) -> None:  # noqa: ARG002  no other settings matter
        self._check_servers()
        self._check_consistency()

    def _check_servers(self) -> None:
        if not self.servers:
            raise UsageError(texts.NO_SERVERS)
        if self.server_group is None:
            if self.replicas > self.server_count:
                raise UsageError(texts.too_few_servers(self.replicas, self.server_count))
            self._refuse(("servers-token", "server-quota"), texts.GROUP_THAT_RUNS)
            return
        if not self.servers_token:
            raise UsageError(texts.no_servers_token(self.servers))
        self._refuse(("server-memory", "replicas"), texts.SERVERS_OF_THE_JOB)

    def _check_consistency(self) -> None:
        if not self.is_synchronous:
            return
        if self.staleness:
            raise UsageError(texts.nobody_is_ahead(self.staleness))
        if self.noise or self.normalize:
            raise UsageError(texts.for_asynchronous_pushes(self.given("noise" if self.noise else "normalize")))

    def _refuse(self, names: tuple[str, ...], whose: str) -> None:
        for name in (name for name in names if name in self.changed()):
            raise UsageError(texts.for_other_servers(self.given(name), whose, self.servers))

    def check_unused(self, chosen: str) -> None:
        for name in sorted(self.changed(), key=lambda name: name != "staleness"):  # staleness implies others
            if name in ("noise", "normalize"):
                raise UsageError(texts.strategy_pushes_nothing(self.given(name), chosen))
            raise UsageError(texts.for_parameter_servers(self.given(name), name, chosen))


PARAMETER_SERVER = StrategyKind(
    name="parameter-server",
    settings=ParameterServerSettings,
    maker="shoal.strategies.parameter_server.parameter_server:make",
    shares=(CodecSettings,),
)
