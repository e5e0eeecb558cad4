"""What the example engine `namespace_engine` declares about itself: its name, its settings with their checks.

In a module of its own, so that coordinator and workers, which import this, need not load what starts processes.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings
from shoal.settings.kind_settings import AllSettings


class NamespacesSettings(EngineSettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "namespaces"

    namespaces: Annotated[str, Meta(description="with --on namespaces: their names, as `ip netns` has them")] = ""
    hide_folders: Annotated[str, Meta(description="folders that are empty for processes, with : between them")] = ""

    def check_values(self) -> None:
        if not re.fullmatch(r"[\w .-]{0,1000}", self.namespaces):
            raise UsageError(f"--namespaces is {self.namespaces!r}; it should be names with spaces between them")

    def check_together(self, job: AllSettings) -> None:
        if not self.namespaces.split():
            raise UsageError('--on namespaces has no namespaces: give --namespaces "NAME NAME"')


NAMESPACES = EngineKind(name="namespaces", maker="support.namespace_engine:chosen", settings=NamespacesSettings)
