"""The interface by which an engine declares its name, its settings and what it needs without being loaded.

The command line, the coordinator and workers know an engine by this declaration only; a launcher whose job has chosen
the engine imports the rest. Not here: which engines there are (`settings.kinds`), and what each does (`engines`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.kind_settings import KindSettings

LOCAL = "local"  # the name of the engine that starts processes on this machine


class EngineSettings(KindSettings, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of one engine. A script cannot give them to `shoal.main`: its processes have been started by then."""

    title: ClassVar[str] = "processes"

    def check_unused(self, chosen: str) -> None:
        for name in self.changed():
            raise UsageError(texts.for_another_engine(self.given(name), name, chosen))


@dataclass(frozen=True)
class EngineKind:
    """The declaration of one engine: one of Shoal's own, or one that a package offers."""

    name: str  # as in `--on`
    maker: str  # MODULE:FUNCTION that makes it, a `launching.elsewhere.chosen.Maker`; empty: this machine
    settings: type[EngineSettings] | None = None  # None: it has none
    package: str = ""  # that it imports, and users may not have installed
    requirement: str = ""  # what to give to pip for that package; empty: its name
    launcher_moves: bool = False  # a resumed job's launcher may be on another machine: forget the recorded address
    restart_count: str = ""  # variable: how often the cluster has restarted a job, which then goes on with its run

    @property
    def all_settings(self) -> tuple[type[EngineSettings], ...]:
        return () if self.settings is None else (self.settings,)


THIS_MACHINE = EngineKind(name=LOCAL, maker="")
DASK = EngineKind(
    name="dask",
    maker="shoal.launching.elsewhere.dask_jobs:chosen",
    package="distributed",
    requirement="shoal[dask]",
)
