"""What is known of a wish to end the job: the exit code that it comes with, and whether workers have agreed. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stopping:
    reason: str | None = None  # once a stop was asked for
    exit_code: int = 0  # the job's, if it ends by that stop
    agreed: str | None = None  # the reason, once the workers agreed on it
    interrupts: int = 0  # times the coordinator itself was told to stop

    @property
    def is_by_signal(self) -> bool:
        """Somebody outside the script wants the end, and has said with which exit code."""
        return self.reason is not None and self.exit_code != 0

    @property
    def outcome(self) -> str:
        return "interrupted" if self.exit_code else "stopped"
