"""The end of a job: the first reason wins, workers are told, and the record is closed once it is complete. Pure."""

from __future__ import annotations

from collections.abc import Collection

from shoal import events
from shoal.errors import by_name
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import EndDecided
from shoal.membership.core.job_clock import JobClock
from shoal.membership.core.publishing import JOB_ENDED, Publishing
from shoal.membership.core.roster import Worker
from shoal.wire.messages import Ended

CLOSING_WAIT = 0.3  # seconds that the end of a job waits for the workers' last reports
PUBLISHING_WAIT = 30.0  # seconds that the end of a job waits for a checkpoint whose parts are all written
TELLING_WAIT = 3.0  # seconds that a coordinator which is started after the job's end stays to tell its clients


class JobEnd:
    def __init__(self, audience: Audience, publishing: Publishing, clock: JobClock, *, now: float) -> None:
        self.ended: Ended | None = None  # decided, and told to the workers
        self.is_over = False  # all clients are told; newcomers are turned away
        self._audience = audience
        self._publishing = publishing
        self._clock = clock
        self._started = now
        self._outcome = ""
        self._since = now
        self._wait = CLOSING_WAIT
        self._is_remembered = False

    def remember(self, end: EndDecided) -> None:
        """The job had ended when the last coordinator died: tell clients that still come."""
        self.ended = Ended(exit_code=end.exit_code, error=end.error, text=end.text)
        self._outcome = "failed" if end.error else "interrupted" if end.exit_code else "finished"
        self._wait = TELLING_WAIT
        self._is_remembered = True

    @property
    def is_telling(self) -> bool:
        """New clients are told how the job ended instead of being turned away."""
        return self._is_remembered and not self.is_over

    def end(self, outcome: str, error: str, text: str, *, exit_code: int = 0, now: float) -> None:
        """End the job. Workers are told now, watchers when the record is complete."""
        if self.ended is not None:
            return
        exit_code = by_name(error, text).exit_code if error else exit_code
        self.ended = Ended(exit_code=exit_code, error=error, text=text)
        self._outcome = outcome
        self._since = now
        self._audience.write_decision(EndDecided(exit_code=exit_code, error=error, text=text))
        self._audience.send(self._audience.workers(), self.ended)

    def close(self, workers: Collection[Worker], now: float) -> None:
        """Close the record and tell the watchers, if it is time."""
        if self.ended is None or self.is_over:
            return
        may_come = self._is_remembered or any(worker.may_speak for worker in workers)
        if now - self._since < self._wait and may_come:
            return
        self._publishing.abandon(JOB_ENDED)
        if self._publishing.is_publishing and now - self._since < PUBLISHING_WAIT:
            return
        self._publishing.give_up(f"it was not published within {PUBLISHING_WAIT:.0f} s of the job's end")
        self.is_over = True
        self._audience.record(
            events.JobEnded(
                outcome=self._outcome,
                exit_code=self.ended.exit_code,
                reason=self.ended.text,
                seconds=now - self._started + self._clock.stood_still,
            )
        )
        self._audience.send(self._audience.watchers(), self.ended)
        self._audience.end(self.ended.exit_code)
