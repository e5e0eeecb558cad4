"""What is known of a wish to end the job: the exit code that it comes with, and whether workers have agreed. Pure."""

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
    exit_code: int = 0  # the job's, if it ends by that stop
    agreed: str | None = None  # the reason, once the workers agreed on it
    interrupts: int = 0  # times the coordinator itself was told to stop

    def remember(self, decided: StopDecided) -> None:
        """An earlier coordinator was asked to stop."""
        self.reason, self.exit_code = decided.reason, decided.exit_code
        self.agreed = decided.reason  # the workers may have, and will not say so again

    def ask(self, worker: int | None, request: StopRequest, audience: Audience) -> None:
        """The first wish to stop, of a worker or, with None, of somebody outside the script: all workers are told."""
        self.reason = reasons.shortened(request.reason)
        self.exit_code = request.exit_code if worker is None else 0
        audience.journal(StopDecided(reason=self.reason, exit_code=self.exit_code))
        audience.note(events.StopRequested(worker=worker, reason=self.reason))
        audience.send(audience.workers(), StopNotice(reason=self.reason))

    @property
    def is_by_signal(self) -> bool:
        """Somebody outside the script wants the end, and has said with which exit code."""
        return self.reason is not None and self.exit_code != 0

    @property
    def outcome(self) -> str:
        return "interrupted" if self.exit_code else "stopped"
