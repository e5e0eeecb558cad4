"""What went wrong in a job, reduced from its events: one incident for all that happened until steps were applied again.

An incident has a beginning, what happened, what was decided and why (word for word), and what it cost. An incident that
breaks an exchange lasts until `ProgressResumed`, which says what it cost; everything that happens meanwhile belongs to
it. Other incidents (a coordinator that came back, a fault on purpose without effect) hold nothing up. Pure. Not here:
goodput, which comes from the metrics (`goodput`), and how an incident is shown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from shoal import events
from shoal.watch import server_words
from shoal.watch.record.incident import Counts, Incident
from shoal.watch.wording import fault_words, first_line, shortly, some_workers, span

MOST_INCIDENTS = 1000  # the newest ones are told one by one; all count in the totals
RELATED = 10.0  # seconds after a fault within which a broken exchange counts as its effect
AT_ONCE = 1.0  # seconds between faults on purpose that are one incident
AFTER = 5.0  # seconds within which news of an incident may come after its end
GONE = "the coordinator's process was gone"
ABOUT = 60.0  # seconds instead of RELATED where both are about one worker, counted from the fault's end


class Incidents:
    """`add` events in order, then iterate. `time` is the record's, in seconds since 1970."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.earlier = 0  # incidents that are no longer told one by one
        self.earlier_seconds = 0.0  # without progress in those incidents, including a normal step per standstill
        self.earlier_standstills = 0  # normal steps to take off `earlier_seconds`
        self.earlier_redone = (0, 0)  # steps and samples, in those
        self._kept: deque[Incident] = deque()
        self._members: frozenset[int] = frozenset()
        self._generation = 0  # the newest
        self._goes = 0
        self._step = 0  # applied steps, as far as anybody said
        self._batch = 0  # samples of a step
        self._is_over = True  # the last go ended as intended
        self._current: Incident | None = None  # the last incident that broke an exchange
        self._servers_lost: Incident | None = None  # the last incident that cost a server, until others serve its part
        self._last_loss: Incident | None = None  # the last incident that cost a member

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def stops(self) -> list[tuple[float, float]]:
        """Spans in which no step was applied; the last one may have no end (infinity)."""
        over = [span for incident in self._kept for span in incident.spans]
        rest = [
            (incident.time, math.inf if incident.is_open else incident.end)
            for incident in self._kept
            if incident.is_stop and incident.resumed is None
        ]
        return [*over, *rest]

    def add(self, event: events.Event, time: float) -> None:
        self._know(event)
        match event:
            case events.JobStarted():
                self._start(time)
            case events.FaultInjected():
                self._inject(event, time)
            case events.WorkerDied() | events.WorkerExpelled() | events.WorkerFailed():
                self._lose(event, time)
            case events.WorkerLeft() if event.is_handover:
                incident = self._stop(time, event.worker) if event.worker in self._members else self._new(time)
                incident.happen(f"worker {event.worker} handed over: {first_line(event.reason)}")
                if event.worker in self._members:
                    self._lost(incident, event.worker)
            case events.StepVoided():
                self._void(event, time)
            case events.GenerationFormed():
                self._form(event, time)
            case events.ProgressResumed():
                self._resume(event, time)
            case events.Waiting():
                self._stop(time).wait(event, time)
            case events.JobEnded():
                self._end(event, time)
            case _:
                self._observe(event, time)

    # What is known beside incidents

    def _know(self, event: events.Event) -> None:
        match event:
            case events.StepsApplied() | events.EpochEnded() | events.CheckpointStarted():
                self._step = max(self._step, event.step)
            case events.StepVoided():
                self._step = max(self._step, event.step - 1)
            case events.LoopStarted() | events.BatchChosen():
                self._batch = event.global_batch
            case _:
                pass

    def _start(self, time: float) -> None:
        """A job that crashed or failed and is started again has lost what came after its last checkpoint."""
        self._close()
        self._members = frozenset()
        self._goes += 1
        if self._goes > 1 and not self._is_over:
            incident = self._new(time)
            incident.happen("the job had come to a bad end and was started again")
            incident.is_new_go = True
        self._is_over = False

    # Signs

    def _inject(self, event: events.FaultInjected, time: float) -> None:
        before = self._gone_before(time) if event.fault == "kill-coordinator" else self._recent(event.worker, time)
        incident = self._stopped() or before or self._injected_with(time) or self._new(time)
        said = f" ({first_line(event.reason)})" if event.reason else ""
        incident.happened.insert(0, f"on purpose: {fault_words(event)}{said}")
        incident.faults.add(event.fault)
        incident.lasts = max(incident.lasts, event.seconds or 0.0)
        if event.worker is not None:
            incident.workers.add(event.worker)
        self.counts.faults += 1

    def _recent(self, worker: int | None, time: float) -> Incident | None:
        """The event of a fault may come after those of its effect."""
        for incident in reversed(self._kept):
            if time - incident.end > AFTER:
                break
            if worker in incident.lost and not incident.faults:
                return incident
        return None

    def _gone_before(self, time: float) -> Incident | None:
        """A killed coordinator cannot record its own fault; the next one hears of it and records it."""
        near = [incident for incident in self._kept if GONE in incident.happened and time - incident.time <= AFTER]
        return near[-1] if near and not near[-1].faults else None

    def _injected_with(self, time: float) -> Incident | None:
        """Several faults at once are one incident."""
        latest = self._kept[-1] if self._kept else None
        is_same = latest is not None and latest.is_open and latest.faults and 0 <= time - latest.time <= AT_ONCE
        return latest if is_same else None

    def _lose(self, event: events.WorkerDied | events.WorkerExpelled | events.WorkerFailed, time: float) -> None:
        is_member = event.worker in self._members
        incident = self._stop(time, event.worker) if is_member else self._related(time, event.worker) or self._new(time)
        incident.workers.add(event.worker)
        if isinstance(event, events.WorkerDied):
            incident.happen(shortly(event.reason))
        elif isinstance(event, events.WorkerExpelled):
            incident.happen(f"worker {event.worker} was expelled at step {event.step}: {shortly(event.reason)}")
            if is_member:
                self.counts.expelled.add((self._goes, event.worker))
        else:
            incident.happen(f"worker {event.worker} failed in step {event.step}: {shortly(event.text)}")
        if is_member:
            self._lost(incident, event.worker)

    def _lost(self, incident: Incident, worker: int) -> None:
        incident.lost.add(worker)
        self.counts.lost.add((self._goes, worker))
        self._last_loss = incident

    def _void(self, event: events.StepVoided, time: float) -> None:
        if event.generation >= self._generation:  # otherwise the event is late
            self._stop(time).void(event)
        elif (incident := self._stopped()) is not None:
            incident.void(event)

    def _form(self, event: events.GenerationFormed, time: float) -> None:
        before, self._members = self._members, frozenset(event.workers)
        self._generation = event.generation
        if not before:  # the first generation of this go
            return
        is_growth = before < self._members  # newcomers are let in, whatever faults there are
        incident = self._stop(time, may_relate=not is_growth)
        incident.came |= self._members - before
        self.counts.came |= {(self._goes, worker) for worker in self._members - before}
        workers = some_workers(len(event.workers))
        incident.decide(f"generation {event.generation} with {workers}: {first_line(event.reason)}")

    def _resume(self, event: events.ProgressResumed, time: float) -> None:
        incident = self._stopped()
        at = min(time, event.time)  # the event comes when all workers have reported that step
        if incident is None:
            incident = self._stop(max(0.0, at - event.seconds))
            incident.decide(first_line(event.reason))
        incident.stand_still(event, at)
        self.counts.void += event.redone - event.taken_back
        self.counts.taken_back += event.taken_back
        self._step = event.step
        if event.generation >= self._generation and not incident.lost & self._members:  # otherwise they regroup again
            incident.resumed, incident.step, incident.is_open = max(at, incident.time), event.step, False

    def _observe(self, event: events.Event, time: float) -> None:
        match event:
            case events.ServerLost() | events.ServersChanged() | events.ParametersGone():
                self._observe_servers(event, time)
            case events.ReplicaDiffered():
                incident = self._related(time, event.worker) or self._new(time)
                who = "of workers" if event.worker is None else f"of worker {event.worker}"
                incident.happen(f"parameters {who} differed at step {event.step}")
                incident.decide(first_line(event.reason))
                self.counts.differed += 1
            case events.CoordinatorReturned():
                incident = self._stopped() or self._of_fault("kill-coordinator", time) or self._new(time)
                incident.happen(GONE)
                incident.decide(f"the coordinator goes on in generation {event.generation}: {first_line(event.reason)}")
                self.counts.coordinators += 1
            case events.StorageRestored() if event.holds_up:
                incident = self._stopped() or self._new(time)
                incident.happen(f"decisions could not be written for {span(event.seconds)}")
                incident.decide(first_line(event.reason))
            case events.WorkerReturned():
                self._return(event, time)
            case events.Resumed():
                self._restore(event, time)
            case _:
                self._add_detail(event, time)

    def _add_detail(self, event: events.Event, time: float) -> None:
        """Events that belong to an open incident and do not open one."""
        going_on = self._stopped() or self._just_over(time)
        match event:
            case events.StateCopied() if going_on is not None:
                going_on.copied += event.size
                going_on.copy_seconds = max(going_on.copy_seconds, event.seconds)
            case events.BatchChosen() | events.WentBack() if going_on is not None:
                going_on.decide(first_line(event.reason))
            case events.WorkerStarted():
                spare = ", a spare that was ready" if event.is_spare else ""
                if (cause := self._last_loss or going_on) is not None:
                    cause.decide(f"worker {event.worker} was started{spare}: {first_line(event.reason)}")
            case events.CheckpointLost():
                if (cause := self._stopped() or self._of_fault("fill-disk", time)) is not None:
                    cause.happen(f"the checkpoint at step {event.step} was lost: {first_line(event.reason)}")
            case _:
                pass

    def _return(self, event: events.WorkerReturned, time: float) -> None:
        """After a coordinator's return all workers come back, which is not worth telling."""
        latest = self._kept[-1] if self._kept else None
        if latest is not None and time - latest.time < ABOUT and GONE in latest.happened:
            return
        incident = self._stopped() or self._related(time, event.worker) or self._new(time)
        incident.workers.add(event.worker)
        incident.happen(f"worker {event.worker} had lost the coordinator and is back")

    def _restore(self, event: events.Resumed, time: float) -> None:
        """All workers began from a checkpoint. If the job goes on, its next step says what that cost."""
        words = f"resumed at step {event.step} from {event.checkpoint}: {first_line(event.reason)}"
        if (incident := self._stopped()) is not None:
            incident.decide(words)
            return
        redone, self._step = max(0, self._step - event.step), event.step
        latest = self._kept[-1] if self._kept else None
        if latest is None or not (latest.is_open and latest.is_new_go):
            if redone == 0:
                return
            latest = self._new(time)
            latest.happen("the job was resumed behind where it had been")
            latest.is_new_go = True
        latest.steps_redone += redone
        latest.samples_redone += redone * self._batch
        latest.taken_back += redone
        latest.decide(words)
        latest.is_open = False

    def _end(self, event: events.JobEnded, time: float) -> None:
        """What is still open when the job ends was not overcome; a stop breaks the last exchange for nothing."""
        self._is_over = event.outcome != "failed"
        incident = self._stopped()
        if incident is not None and event.outcome == "failed":
            incident.decide(f"the job ended: {first_line(event.reason)}")
        elif incident is not None and not (incident.happened or incident.decided):
            self._kept.remove(incident)
            self._current = incident = None
        if incident is not None:
            incident.ended = time
        self._close()

    def _observe_servers(
        self, event: events.ServerLost | events.ServersChanged | events.ParametersGone, time: float
    ) -> None:
        """Training may go on all the while; then the incident has cost nothing."""
        if isinstance(event, events.ServerLost):
            self._servers_lost = self._stopped() or self._related(time, None) or self._new(time)
            self._servers_lost.happen(f"server {event.server} was lost: {first_line(event.reason)}")
            self.counts.servers.add((self._goes, event.server))
        elif isinstance(event, events.ParametersGone):  # maybe by a worker, when the servers are settled again
            about = self._servers_lost or self._stopped() or self._related(time, None) or self._new(time)
            about.happen(f"{server_words.gone(event)}: {first_line(event.reason)}")
        elif self._servers_lost is not None:
            self._servers_lost.decide(str(server_words.notice(event)))
            if isinstance(event, events.ServersChanged) and event.is_settled:
                self._servers_lost = None

    # Which incident an event belongs to

    def _stopped(self) -> Incident | None:
        """The incident that steps wait for."""
        return self._current if self._current is not None and self._current.is_open else None

    def _stop(self, time: float, worker: int | None = None, *, may_relate: bool = True) -> Incident:
        """The incident that steps wait for from now on, since an exchange broke."""
        incident = self._stopped() or (self._related(time, worker) if may_relate else None) or self._new(time)
        incident.is_stop = True
        self._current = incident
        return incident

    def _related(self, time: float, worker: int | None) -> Incident | None:
        """An incident that has held nothing up yet and may be the cause: about the same worker, or just before."""
        quiet = [incident for incident in self._kept if incident.is_open and not incident.is_stop]
        about = [incident for incident in quiet if worker in incident.workers and time - incident.end <= ABOUT]
        near = [incident for incident in quiet if 0 <= time - incident.time <= max(RELATED, incident.lasts)]
        found = about or near
        return found[-1] if found else None

    def _of_fault(self, fault: str, time: float) -> Incident | None:
        found = [incident for incident in self._kept if fault in incident.faults and time - incident.end < ABOUT]
        return found[-1] if found else None

    def _just_over(self, time: float) -> Incident | None:
        latest = self._kept[-1] if self._kept else None
        return latest if latest is not None and latest.is_stop and 0 <= time - latest.end <= AFTER else None

    def _new(self, time: float) -> Incident:
        incident = Incident(time, self._goes)
        self._kept.append(incident)
        if len(self._kept) > MOST_INCIDENTS:
            oldest, (steps, samples) = self._kept.popleft(), self.earlier_redone
            self.earlier += 1
            self.earlier_seconds += oldest.without_progress(0.0)
            self.earlier_standstills += oldest.standstills
            self.earlier_redone = (steps + oldest.steps_redone, samples + oldest.samples_redone)
        return incident

    def _close(self) -> None:
        for incident in self._kept:
            incident.is_open = False
