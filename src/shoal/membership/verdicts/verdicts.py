"""What ends the job and what only costs it a worker: failures, exits of processes, all workers being done. Pure.

Not here: deaths of members, after which the others go on (`generations`), and how the end is announced (`job_end`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal import events
from shoal.errors import Interrupted, ScriptFailed, ServersLost, TermsDiffer, WorkerLost, WorkersDisagree, by_name
from shoal.job_config import JobConfig
from shoal.membership.core import admission, reasons
from shoal.membership.core.audience import Audience
from shoal.membership.core.decisions import FailureCounted, Remembered
from shoal.membership.core.roster import Fate, Worker
from shoal.membership.core.stopping import Stopping
from shoal.membership.generations.generations import Verdict
from shoal.membership.verdicts.deaths import BadExit, Exit, bad_exit
from shoal.membership.verdicts.failures import Failures, sameness
from shoal.membership.verdicts.finishing import Finishing
from shoal.membership.verdicts.job_end import JobEnd
from shoal.wire.messages import Failed, Join


@dataclass(frozen=True)
class Failure:
    """A failure of the script on one worker."""

    step: int
    error: str  # class name
    text: str


class Verdicts:
    def __init__(
        self, config: JobConfig, audience: Audience, finishing: Finishing, ending: JobEnd, stop: Stopping
    ) -> None:
        self.expects_workers = False  # the script's workers join; False: not known before the first one has joined
        self.exits: dict[int, int] = {}  # exit codes by worker number, joined or not
        self._config = config
        self._audience = audience
        self._finishing = finishing
        self._generations = finishing.generations
        self._end_of_job = ending
        self._stop = stop
        self._failures = Failures(config.max_failures)
        self._failed: list[tuple[Worker, Failed]] = []  # not judged yet: a death may have caused the failure
        self._has_applied = False  # a step of this job was applied
        self._last_failure: Failure | None = None  # None once a step was applied after it
        self._turned_away: set[int] = set()  # newcomers with another script or version; events name them
        self._known_before = -1  # numbers up to this were given before this coordinator was started again

    def remember(self, known: Remembered, highest: int) -> None:
        """Go on after an earlier coordinator, which gave numbers up to `highest`."""
        self._failures = Failures(self._config.max_failures, known.failures)
        self._has_applied = known.generation is not None
        self._known_before = highest

    def was_known(self, number: int) -> bool:
        """Whether an earlier coordinator had given this number."""
        return number <= self._known_before

    def progressed(self, step: int, *, is_applied: bool) -> None:
        """A step above 0 was heard of. `is_applied`: it was applied."""
        self._has_applied = True
        if is_applied:
            self._failures.progressed()
            if self._last_failure is not None and step > self._last_failure.step:
                self._last_failure = None

    # What is heard

    def failed(self, worker: Worker, failed: Failed, now: float, *, newest: int) -> bool:
        """Whether the failure is news, not a repetition of why the job ended. `newest`: the highest number given."""
        text = reasons.shortened(failed.text)
        if failed.error == TermsDiffer.__name__:
            self._turn_away(worker.number, text, now, is_guest=worker.is_guest, newest=newest)
            return True
        self._generations.failed(worker)
        if self._end_of_job.ended is not None and text in self._end_of_job.ended.text:
            return False
        name = type(by_name(failed.error, text)).__name__
        self._audience.record(events.WorkerFailed(worker=worker.number, step=failed.step, error=name, text=text))
        self._failed.append((worker, failed))
        return True

    def unlike(self, join: Join, now: float, *, is_guest: bool, newest: int) -> str:
        """Why a worker is turned away whose versions differ from the others'; empty where they are the same.

        Before the first generation this ends the job, since no other worker can take its place, unless it is a guest.
        """
        text = admission.unlike(join, self._generations.workers.values())
        if text and self._generations.current is None and not is_guest:
            self._end_of_job.end("failed", WorkersDisagree.__name__, text, now=now)
        elif text:
            self._turn_away(join.worker, text, now, is_guest=is_guest, newest=newest)
        return text

    def _turn_away(self, number: int, text: str, now: float, *, is_guest: bool, newest: int) -> None:
        """A newcomer runs something else than the job: the newcomer ends, and the members go on.

        A replacement that the launcher started counts as a failed start. Where too few members are left to go on, too
        many failed starts in a row end the job: the next replacement would be turned away too.
        """
        self._turned_away.add(number)
        error = TermsDiffer.__name__
        self._audience.record(events.WorkerFailed(worker=number, step=0, error=error, text=text))
        if (worker := self._generations.workers.get(number)) is not None:
            self._generations.failed(worker)
            self._generations.out(worker, f"worker {number} was turned away ({text})", now)
        if is_guest or self._goes_on or self._stop.reason is not None:
            return
        if self._failures.is_too_many(count := self._failures.start_failed(number, newest=newest)):
            times = f"; {count} rounds of processes in a row were turned away" if count > 1 else ""
            self._end_of_job.end("failed", error, f"worker {number} was turned away: {text}{times}", now=now)

    def exited(self, exited: Exit, now: float, *, newest: int) -> None:
        """A process has ended, whether it had joined or not. `newest`: the highest number given."""
        number, code = exited.worker, exited.code
        if number in self.exits or self._end_of_job.ended is not None:
            return
        self.exits[number] = code
        worker = self._generations.workers.get(number)
        if worker is None and (self.was_known(number) or number in self._turned_away):
            return  # an earlier coordinator was told of this exit, or the process was turned away
        if worker is not None:
            worker.exit_code, worker.loss = code, exited.loss
        if worker is not None and worker.is_here:
            self._generations.exited(worker, now)
            if worker.first_generation:
                return
        if code == 0:
            if worker is not None and worker.fate is Fate.RELEASED:
                self._finishing.ended_well(worker, now)
        elif worker is None or worker.fate in (Fate.HERE, Fate.RELEASED) or (worker.fate is Fate.FINISHED and code > 0):
            # A process that is killed after its script's last line changes nothing.
            self._bad_exit(bad_exit(exited, worker), worker, now, newest=newest)

    def _bad_exit(self, found: BadExit, worker: Worker | None, now: float, *, newest: int) -> None:
        """A process ended badly before it was in a generation, or after its function had returned."""
        self._audience.record(found.event)
        is_at_end = worker is not None and worker.fate in (Fate.RELEASED, Fate.FINISHED)
        if worker is not None and not is_at_end:
            worker.fate = Fate.DEAD
        if self._is_hopeless_start(found, newest) or is_at_end:
            self._end_of_job.end("failed", found.error, found.text, now=now)
        elif self._is_through or any(member.is_connected for member in self._generations.members.values()):
            return  # the members hold the job's state, and go on or wait for a process that starts well
        elif self._stop.reason is None:
            count = self._failures.start_failed(found.event.worker, newest=newest)
            if self._failures.is_too_many(count):
                rounds = f"; {count} rounds of processes in a row ended before they were in a generation"
                self._end_of_job.end("failed", found.error, found.text + (rounds if count > 1 else ""), now=now)

    def _is_hopeless_start(self, found: BadExit, newest: int) -> bool:
        """Whether a bad exit before anybody joined ends the job at once, while nobody was replaced.

        A script that fails this early fails everywhere. A plain script that is killed cannot be replaced: the others
        may be in the middle of an exchange with it.
        """
        if self._generations.workers or newest >= self._config.workers:
            return False
        return found.error == ScriptFailed.__name__ or not self.expects_workers

    # What follows

    @property
    def _goes_on(self) -> bool:
        """Enough members are connected, at work or on the way into the next generation; or none is needed any more."""
        needs_few = self._stop.reason is not None or self._generations.has_result
        here = sum(worker.is_connected for worker in self._generations.members.values())
        return self._is_through or here >= (1 if needs_few else self._config.fewest)

    @property
    def _is_through(self) -> bool:
        """All members were released: other workers have nothing to do with the job any more."""
        generations = self._generations
        return generations.has_result and not generations.members and generations.is_fine

    def judge(self, now: float) -> None:
        """Decide about failures, unless a member may have died: then the failure may be a consequence, and waits."""
        if not self._failed or self._generations.has_suspects:
            return
        unjudged, self._failed = self._failed, []
        for worker, failed in unjudged:
            error = by_name(failed.error, failed.text)
            is_of_script = isinstance(error, ScriptFailed)
            is_foreign = self._is_through or worker.is_guest or not is_of_script
            if not worker.first_generation and self._goes_on and is_foreign:
                continue  # a newcomer could not start, which an event says; the members are not affected
            text = reasons.failure(worker.number, failed, of_script=is_of_script)
            if is_of_script and self._has_applied:
                self._audience.write_decision(FailureCounted(sameness(failed.text)))
                count = self._failures.script_failed(failed.text)
                self._last_failure = Failure(failed.step, type(error).__name__, text)
                if not self._failures.is_too_many(count):
                    self._generations.lose(worker, reasons.script_failed(worker.number, failed.step), now)
                    continue
                text += f"\nIt failed in this way {count} times." if count > 1 else ""
            elif isinstance(error, ServersLost) and self._has_others(worker):
                # Its link to the servers may be cut. If the servers are gone, the others will fail too.
                self._generations.lose(worker, reasons.lost_its_servers(worker.number), now)
                continue
            outcome = "interrupted" if isinstance(error, Interrupted) else "failed"
            self._end_of_job.end(outcome, type(error).__name__, text, now=now)

    def _has_others(self, worker: Worker) -> bool:
        """Whether other members can go on without this worker, as far as is known."""
        members = self._generations.members.values()
        return self._has_applied and any(member is not worker and member.is_connected for member in members)

    def finish(self, now: float, *, is_tick: bool) -> None:
        """End the job when all workers are done, or when no worker is left and none can come."""
        if self._generations.current is None:
            self._finish_without_generation(now)
        elif not self._generations.members:
            if self._is_through:
                self._finish_scripts(now)
            elif self._stop.reason is not None:
                self._end_of_job.end(self._stop.outcome, "", self._stop.reason, exit_code=self._stop.exit_code, now=now)
        if is_tick and self._end_of_job.ended is None:
            verdict = self._generations.hopeless(now, is_stopping=self._stop.reason is not None)
            if verdict is not None:
                self.carry_out(verdict, now)

    def _finish_scripts(self, now: float) -> None:
        """The functions of all members have returned; the code behind `shoal.main` may still run."""
        if (lost := self._finishing.vanished(now)) is not None:
            self._end_of_job.end("failed", WorkerLost.__name__, reasons.lost_at_the_end(lost.name), now=now)
        elif not self._finishing.is_open:
            finished = sum(worker.fate is Fate.FINISHED for worker in self._generations.workers.values())
            self._end_finished(f"{reasons.all_of(finished, 'worker', 'workers')} finished", now)

    def carry_out(self, verdict: Verdict, now: float) -> None:
        self._end_of_job.end("failed", verdict.error, verdict.text, now=now)

    def went_back(self, step: int, now: float) -> None:
        """All members run the code behind a loop again, after this step, since a worker was lost in it."""
        count = self._failures.went_back(step)
        if self._failures.is_too_many(count):
            text = reasons.lost_behind_the_loop(self._generations.loss, count)
            self._end_of_job.end("failed", WorkerLost.__name__, text, now=now)

    def _finish_without_generation(self, now: float) -> None:
        """The workers of a plain script never join. Of any other script, all workers must join."""
        needed, workers = self._config.workers, self._generations.workers
        clean = sorted(
            number for number, code in self.exits.items() if code == 0 and number < needed and number not in workers
        )
        if workers and clean:
            text = reasons.left_out(clean[0], min(workers))
            self._end_of_job.end("failed", WorkersDisagree.__name__, text, now=now)
        elif len(clean) == needed:
            text = f"{reasons.all_of(needed, 'process', 'processes')} ended with exit code 0"
            self._end_of_job.end("finished", "", text, now=now)
        elif len(workers) >= needed and all(worker.fate is Fate.FINISHED for worker in workers.values()):
            self._end_finished(f"{reasons.all_of(needed, 'worker', 'workers')} finished", now)

    def _end_finished(self, text: str, now: float) -> None:
        """All workers have finished. If a script failed after the last step, the job has failed all the same."""
        if self._last_failure is not None:
            self._end_of_job.end("failed", self._last_failure.error, self._last_failure.text, now=now)
        elif self._stop.agreed is not None:
            self._end_of_job.end(self._stop.outcome, "", self._stop.agreed, exit_code=self._stop.exit_code, now=now)
        else:
            self._end_of_job.end("finished", "", text, now=now)

    def end_interrupted(self, reason: str, now: float) -> None:
        if self._stop.is_by_signal and self._stop.reason is not None:  # the first reason counts
            self._end_of_job.end("interrupted", "", self._stop.reason, exit_code=self._stop.exit_code, now=now)
        else:
            self._end_of_job.end("interrupted", Interrupted.__name__, reason, now=now)
