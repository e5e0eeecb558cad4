"""`--on ssh` and its setting `--hosts`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings
from shoal.settings.kind_settings import AllSettings


class SshSettings(EngineSettings, frozen=True, kw_only=True, rename="kebab"):
    hosts: Annotated[str, Meta(description="TOML file with a table for each host of --on ssh")] = ""

    def check_together(self, job: AllSettings) -> None:  # noqa: ARG002  no other settings matter
        if not self.hosts:
            raise UsageError(texts.NO_HOSTS)

    def check_unused(self, chosen: str) -> None:  # noqa: ARG002  whichever it is
        if self.hosts:
            raise UsageError(texts.hosts_without_ssh(self.hosts))


SSH = EngineKind(name="ssh", maker="shoal.launching.elsewhere.ssh_jobs:chosen", settings=SshSettings)
