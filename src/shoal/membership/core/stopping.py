"""A request to stop the job: its reason, its exit code, and whether the workers have agreed to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal import events
from shoal.membership.core import reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import StopDecided
from shoal.wire.messages import StopNotice, StopRequest


@dataclass(slots=True)
class Stopping:
    reason: str | None = None  # once a stop was asked for
    exit_code: int = 0  # of the job, if this stop ends it
    agreed: str | None = None  # the reason, once the workers agreed on it
    interrupts: int = 0  # times the coordinator itself was told to stop

    def remember(self, decided: StopDecided) -> None:
        """An earlier coordinator was asked to stop."""
        self.reason, self.exit_code = decided.reason, decided.exit_code
        self.agreed = decided.reason  # the workers may have agreed already, and will not say so again

    def ask(self, worker: int | None, request: StopRequest, audience: Audience) -> None:
        """Pass the first request to stop on to all workers. `worker` is None where it came from outside the script."""
        self.reason = reasons.shortened(request.reason)
        self.exit_code = request.exit_code if worker is None else 0
        audience.write_decision(StopDecided(reason=self.reason, exit_code=self.exit_code))
        audience.record(events.StopRequested(worker=worker, reason=self.reason))
        audience.send(audience.workers(), StopNotice(reason=self.reason))

    @property
    def is_by_signal(self) -> bool:
        """The request came from outside the script, with an exit code."""
        return self.reason is not None and self.exit_code != 0

    @property
    def outcome(self) -> str:
        return "interrupted" if self.exit_code else "stopped"
