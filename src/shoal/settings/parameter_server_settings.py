"""Settings of the parameter-server strategy: what each may be, and which go together. Pure.

A mistake is a `UsageError` that names the setting, its value and the nearest that works.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.manners import Manners
from shoal.settings.codec_settings import CodecSettings
from shoal.settings.setting_checks import MOST_LOCAL, one_of, size_of
from shoal.settings.strategy_settings import AllSettings, StrategyKind, StrategySettings
from shoal.values import Address

CONSISTENCIES = ("synchronous", "asynchronous")
SCALINGS = ("lr", "gradient", "none")
MOST_STALENESS = 10**9


class ParameterServerSettings(StrategySettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "parameter servers"

    servers: Annotated[
        str, Meta(description="parameter servers: how many to start, or HOST:PORT of a group that runs")
    ] = ""
    servers_token: Annotated[
        str, Meta(description="file with the token of that group, as `shoal servers start` names it")
    ] = ""
    replicas: Annotated[int, Meta(description="servers that hold each parameter; one less of them may die at once")] = 1
    consistency: Annotated[
        str, Meta(description="synchronous (all workers' gradients make one update) or asynchronous (each its own)")
    ] = "synchronous"
    staleness: Annotated[
        str, Meta(description="updates by which a worker may be ahead of the slowest; implies asynchronous")
    ] = ""
    staleness_scaling: Annotated[
        str, Meta(description="what a late update is scaled down in: lr (the learning rate), gradient or none")
    ] = "lr"
    noise: Annotated[
        float, Meta(description="standard deviation of noise that each asynchronous push adds to its gradient")
    ] = 0.0
    normalize: Annotated[bool, Meta(description="asynchronous pushes have their gradient scaled to norm 1")] = False
    server_memory: Annotated[
        str, Meta(description="what each server may hold, such as 2GB; default 90% of what is free, divided evenly")
    ] = ""
    server_limit: Annotated[
        float, Meta(description="seconds of silence after which a parameter server counts as lost")
    ] = 1.5
    server_quota: Annotated[
        str,
        Meta(description="what the job may hold on all servers, parameters and state, such as 4GB; default no limit"),
    ] = ""

    @classmethod
    def completed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A number of servers, or of updates, is the plainest way to write either in Python and TOML."""
        texts = {name: str(given[name]) for name in ("servers", "staleness") if type(given.get(name)) is int}
        implied = {"consistency": "asynchronous"} if texts.get("staleness", given.get("staleness")) else {}
        return {**implied, **given, **texts}

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers' gradients make one update."""
        return self.consistency == "synchronous"

    @property
    def manners(self) -> Manners:
        """Workers with servers connect to nobody else."""
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
        """Where the group of servers is reached that runs already."""
        if not self.servers or re.fullmatch(r"[0-9]{1,9}", self.servers):
            return None
        return parse_address(self.servers, named="--servers")

    def check_values(self) -> None:
        one_of("consistency", self.consistency, CONSISTENCIES)
        one_of("staleness-scaling", self.staleness_scaling, SCALINGS)
        address = self.server_group
        if self.servers and address is None and not 1 <= self.server_count <= MOST_LOCAL:
            raise UsageError(f"--servers is {self.servers}; one machine starts from 1 to {MOST_LOCAL}")
        if address is not None and not address.port:
            raise UsageError(
                f"--servers is {self.servers!r}; it should be a number of servers to start (3), or HOST:PORT of a "
                "group that runs, as `shoal servers start` prints it"
            )
        if not 1 <= self.replicas <= MOST_LOCAL:
            raise UsageError(f"--replicas is {self.replicas}; it should be from 1 to {MOST_LOCAL}")
        if self.staleness and (
            not re.fullmatch(r"[0-9]{1,10}", self.staleness) or int(self.staleness) > MOST_STALENESS
        ):
            raise UsageError(
                f"--staleness is {self.staleness!r}; it should be a whole number of updates, 0 or more: 0 lets no "
                "worker ahead of another, and --consistency asynchronous without --staleness has no bound"
            )
        if not 0 <= self.noise <= 1e6:  # nan is not either
            raise UsageError(f"--noise is {self.noise}; it should be a standard deviation of 0 (none) or more")
        if not 1 <= self.server_limit <= 3600:
            raise UsageError(f"--server-limit is {self.server_limit}; it should be from 1 to 3600 seconds")
        size_of(self.server_memory or "1B", named="--server-memory")
        size_of(self.server_quota or "1B", named="--server-quota")

    def check_together(self, job: AllSettings) -> None:  # noqa: ARG002  no other settings matter
        self._check_servers()
        self._check_consistency()

    def _check_servers(self) -> None:
        if not self.servers:
            raise UsageError(
                "--strategy parameter-server has no servers: give --servers 2 to start two, or --servers HOST:PORT of "
                "a group that `shoal servers start` runs; without servers, take --strategy all-reduce"
            )
        if self.server_group is None:
            if self.replicas > self.server_count:
                raise UsageError(
                    f"--replicas is {self.replicas} of {self.servers} servers, and each parameter is on so many "
                    f"different ones: give --servers {self.replicas} or more, or --replicas {self.server_count}"
                )
            self._refuse(("servers-token", "server-quota"), "a group that runs (--servers HOST:PORT)")
            return
        if not self.servers_token:
            raise UsageError(
                f"--servers {self.servers} needs --servers-token FILE: the file that `shoal servers start` has named"
            )
        self._refuse(("server-memory", "replicas"), "servers of the job's own (--servers 2)")

    def _check_consistency(self) -> None:
        if not self.is_synchronous:
            return
        if self.staleness:
            raise UsageError(
                f"--staleness {self.staleness} does not go with --consistency synchronous, where nobody is ever ahead; "
                "leave one of them out"
            )
        if self.noise or self.normalize:
            given = f"--noise {self.noise}" if self.noise else "--normalize"
            raise UsageError(
                f"{given} is for asynchronous pushes and does not go with --consistency synchronous; "
                "take --consistency asynchronous"
            )

    def _refuse(self, names: tuple[str, ...], who: str) -> None:
        for name in (name for name in names if name in self.changed()):
            raise UsageError(f"{self.given(name)} is for {who}; with --servers {self.servers} leave it out")

    def check_unused(self, strategy: str) -> None:
        for name in sorted(self.changed(), key=lambda name: name != "staleness"):  # which implies others
            if name in ("noise", "normalize"):
                raise UsageError(
                    f"{self.given(name)} is for asynchronous pushes, and --strategy {strategy} has none; take "
                    "--strategy parameter-server --servers 2 --consistency asynchronous"
                )
            raise UsageError(
                f"{self.given(name)} is for --strategy parameter-server, and the strategy is {strategy}; add "
                f"--strategy parameter-server, or leave --{name} out"
            )


PARAMETER_SERVER = StrategyKind(
    name="parameter-server",
    settings=ParameterServerSettings,
    maker="shoal.strategies.parameter_server.parameter_server:make",
    shares=(CodecSettings,),
)
