"""A worker's own record of its script's calls, which one member of each generation reports. Pure.

The other members keep their records too, so that any of them can take over when the reporting member is lost. Not here:
what the coordinator does with the calls (`briefings`).
"""

from __future__ import annotations

from shoal.terms import Made, chunk
from shoal.values import Generation
from shoal.wire.messages import Calls


def teller(generation: Generation) -> int:
    """The worker that reports: a holder, which has made all calls of the job, or any where all start from the top."""
    return min(generation.holders, default=generation.members[0].worker)


class CallBook:
    """Each method returns the messages to send."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._calls: list[Made] = []
        self._generation = 0  # number of the newest generation
        self._tells = False  # this worker reports its calls in the newest generation

    def made(self, index: int, made: Made) -> tuple[Calls, ...]:
        """The script has made this call, or the call has returned its result.

        A script that starts again from the top makes its first call again, which voids the record of later ones.
        """
        if index > len(self._calls):  # the calls before it belong to a run of the script that was given up
            return ()
        del self._calls[index:]
        self._calls.append(made)
        return (Calls(first=index, calls=(made,)),) if self._tells else ()

    def formed(self, generation: Generation) -> tuple[Calls, ...]:
        """A generation has formed. Without holders all scripts start from the top."""
        if generation.number <= self._generation:
            return ()
        self._generation = generation.number
        if not generation.holders:
            self._calls.clear()
        did_tell, self._tells = self._tells, teller(generation) == self._worker
        return self._all() if self._tells and not did_tell else ()

    def connected(self) -> tuple[Calls, ...]:
        """There is a new connection, perhaps to a restarted coordinator that knows no calls."""
        return self._all() if self._tells else ()

    def _all(self) -> tuple[Calls, ...]:
        messages, first = [], 0
        while part := chunk(self._calls, first):
            messages.append(Calls(first=first, calls=part))
            first += len(part)
        return tuple(messages)
