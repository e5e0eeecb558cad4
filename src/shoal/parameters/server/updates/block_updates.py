"""Applies ledger entries to one job's blocks on one server: one entry at a time, unit by unit.

A clipped update is summed first, then waits until all servers agree on its norm. Not here: the order of entries
(`work_queue`), and what happens once an entry is applied (`space`).
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import ServerRefused, ShoalError
from shoal.parameters.ledger.effects import Replace, Update
from shoal.parameters.server.space.job_state import JobState
from shoal.parameters.server.space.site import Site
from shoal.parameters.server.space.worker_desk import WorkerDesk
from shoal.parameters.server.updates.norms import NormExchange, TellServers
from shoal.parameters.server.updates.updating import Updating
from shoal.values import ServerMap
from shoal.wire.parameter_messages import PartialNorm, TotalNorm
from shoal.wire.tables import PushId

MOST_NAMED = 4  # pushes that an error names


class BlockUpdates:
    def __init__(self, state: JobState, site: Site, desk: WorkerDesk) -> None:
        self._state = state
        self._site = site
        self._desk = desk
        self._norms = NormExchange(site.number)
        self._updating: Updating | None = None  # the entry that is being applied

    @property
    def held_bytes(self) -> int:
        return 0 if self._updating is None else self._updating.held_bytes

    def has_work(self, head: Update | Replace) -> bool:
        """False: other servers have to send their parts of a norm first."""
        if self._updating is None or not self._updating.needs_norms:
            return True
        return self._norms.needs_part(head.number) or self._norms.total(head.number) is not None

    def work(self, head: Update | Replace) -> tuple[PushId, ...] | None:
        """Do one unit of the head entry. Returns its pushes once it is applied. `ShoalError`: it cannot be applied."""
        try:
            return self._work(head)
        except ServerRefused:
            raise
        except Exception as error:
            pushes = ", ".join(f"{push.number} of worker {push.worker}" for push in pushes_of(head)[:MOST_NAMED])
            what = f"entry {head.number} of its ledger (push {pushes}) cannot be applied"
            why = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            raise ShoalError(f"{what}: {why}") from error

    def _work(self, head: Update | Replace) -> tuple[PushId, ...] | None:
        if self._updating is None:
            if self._state.holding is None:
                raise ShoalError("it changes blocks, and there are none here")
            self._updating = Updating(self._state.holding, head)
        if self._updating.needs_norms:
            self._agree_on_norm(head.number, self._updating)
            return None
        return self._apply(self._updating)

    def _apply(self, updating: Updating) -> tuple[PushId, ...] | None:
        queue, unit = self._state.queue, self._state.queue.done
        if unit < updating.units:
            self._desk.detach(unit)
            updating.apply_unit(unit)
            queue.done += 1
            self._site.crash_at("unit")
        if queue.done < updating.units:
            self._desk.look_at(unit)
            return None
        updating.close()
        self._updating = None
        return updating.pushes

    def close(self) -> None:
        """Give up the entry that is being applied."""
        if self._updating is not None:
            self._updating.close()
            self._updating = None

    # Norms

    def new_map(self, servers: ServerMap) -> None:
        self._norms.new_view(servers.version, (server.number for server in servers.servers))

    def connected(self) -> None:
        """There is a new connection to another server; what was sent on the old one may be lost."""
        self._norms.repeat()

    def heard(self, sender: int, note: PartialNorm | TotalNorm) -> None:
        if isinstance(note, TotalNorm):
            self._tell(self._norms.heard_total(note.view, note.number, note.squares))
        else:
            self._tell(self._norms.heard_part(sender, note.view, note.number, note.squares))

    def _agree_on_norm(self, number: int, updating: Updating) -> None:
        total = self._norms.total(number)
        if total is not None:
            updating.clip(total)
        elif self._norms.needs_part(number):
            assert self._state.holding is not None and self._state.map is not None, "an update is under way"
            squares = updating.square_unit(self._state.holding.answers_for(self._state.map))
            if squares is not None:
                contributors = [server.number for server in self._state.holding.map.servers]
                self._tell(self._norms.offer(number, squares, contributors))

    def _tell(self, tells: Sequence[TellServers]) -> None:
        for tell in tells:
            kind = TotalNorm if tell.is_total else PartialNorm
            note = kind(job=self._state.job, view=tell.view, number=tell.number, squares=tell.squares)
            for server in tell.servers:
                self._site.to_server(server, note)


def pushes_of(work: Update | Replace) -> tuple[PushId, ...]:
    return work.pushes if isinstance(work, Update) else (work.push,)
