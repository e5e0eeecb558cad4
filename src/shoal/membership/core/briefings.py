"""What newcomers are told of the job's calls before they are let in. Pure.

A newcomer runs the script from the top and compares each of its calls with the members' calls (`shoal.terms`). For
this, one member reports its script's calls (`call_book`). A newcomer that says it is ready is sent the calls that it
has not seen (a briefing); it compares them, passes those that are over, and says again that it is ready. The members do
not regroup for a newcomer before that. Not here: the comparison, which the newcomer makes
(`training.script.script_calls`), and who is let in (`forming`).
"""

from __future__ import annotations

from shoal.membership.core.audience import Audience
from shoal.membership.core.roster import Worker
from shoal.membership.generations.generations import Generations
from shoal.membership.member.call_book import teller
from shoal.terms import MOST_CALLS, Made, chunk
from shoal.values import Generation
from shoal.wire.messages import Briefing, Calls, Ready

MOST_BYTES = 16 * 1024 * 1024  # of calls that are kept; a newcomer compares later ones once it is let in
# Per newcomer. Members whose loops take milliseconds make new calls as fast as a newcomer can be told of them.
MOST_BRIEFINGS = 32


class Briefings:
    def __init__(self, generations: Generations, audience: Audience) -> None:
        self._generations = generations
        self._audience = audience
        self._calls: list[Made] = []
        self._size = 0  # approximate bytes of the calls
        self._generation: Generation | None = None  # the generation that made the calls
        self._teller = -1  # number of the member that reports the calls

    # From members

    def follow(self) -> None:
        """Call after every input. In a generation without holders all scripts start again: old calls are void."""
        generation = self._generations.current
        if generation is None or generation is self._generation:
            return
        self._generation = generation
        if not generation.holders:
            self._calls.clear()
            self._size = 0
        self._teller = teller(generation)

    def learn(self, worker: Worker, told: Calls) -> None:
        is_teller = worker.number == self._teller and self._generations.is_member(worker)
        if not is_teller or not 0 <= told.first <= len(self._calls):
            return
        self._size -= sum(made.size for made in self._calls[told.first :])
        del self._calls[told.first :]
        for made in told.calls:
            if len(self._calls) >= MOST_CALLS or self._size + made.size > MOST_BYTES:
                break
            self._calls.append(made)
            self._size += made.size
        for waiting in self._generations.workers.values():
            if waiting.is_ready and self._has_news_for(waiting):
                self._brief(waiting)

    # To newcomers

    def answer(self, worker: Worker, ready: Ready) -> bool:
        """Whether the newcomer was briefed; then it is not ready yet.

        Where no member is left, all workers start together from a checkpoint without briefings. A guest is briefed even
        then: a guest with another script must not end the job for all.
        """
        worker.seen, worker.is_ahead = ready.seen, False
        is_start = self._generation is None or not (self._generations.members or worker.is_guest)
        if ready.seen is None or is_start or self._generations.is_member(worker):
            return False
        worker.is_ahead = ready.is_ahead and worker.briefings < MOST_BRIEFINGS
        if not self._has_news_for(worker):
            return False
        self._brief(worker)
        return True

    def _has_news_for(self, worker: Worker) -> bool:
        return worker.seen is not None and worker.seen < len(self._calls) and worker.briefings < MOST_BRIEFINGS

    def _brief(self, worker: Worker) -> None:
        worker.is_ready = False
        worker.briefings += 1
        if worker.client is not None and worker.seen is not None and self._generation is not None:
            first = max(0, worker.seen - 1)  # the last call that the newcomer has seen may have a result by now
            message = Briefing(generation=self._generation, first=first, calls=chunk(self._calls, first))
            self._audience.send((worker.client,), message)
