"""A worker's own record of its script's calls, told to the coordinator by one member of each generation. Pure.

The others keep theirs, so that any of them can tell when that member is lost. Not here: what becomes of the calls
(`briefings`).
"""

from __future__ import annotations

from shoal.terms import Made, chunk
from shoal.values import Generation
from shoal.wire.messages import Calls


def teller(generation: Generation) -> int:
    """The worker that tells: one that has made all calls of the job, or any where all start from the top."""
    return min(generation.carriers, default=generation.members[0].worker)


class CallBook:
    """Each method returns what is to be sent."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._calls: list[Made] = []
        self._generation = 0  # number of the newest one
        self._tells = False  # this worker is the one that tells, in the newest generation

    def made(self, index: int, made: Made) -> tuple[Calls, ...]:
        """The script has made this call, or the call gave its result.

        A script that starts again from the top makes its first call: what was noted of later ones is void.
        """
        if index > len(self._calls):  # those before it belong to a run of the script that was given up
            return ()
        del self._calls[index:]
        self._calls.append(made)
        return (Calls(first=index, calls=(made,)),) if self._tells else ()

    def formed(self, generation: Generation) -> tuple[Calls, ...]:
        """A generation was heard of. Without anybody's state all scripts start from the top."""
        if generation.number <= self._generation:
            return ()
        self._generation = generation.number
        if not generation.carriers:
            self._calls.clear()
        did_tell, self._tells = self._tells, teller(generation) == self._worker
        return self._all() if self._tells and not did_tell else ()

    def connected(self) -> tuple[Calls, ...]:
        """There is a new connection, maybe to a coordinator that was started again and knows nothing."""
        return self._all() if self._tells else ()

    def _all(self) -> tuple[Calls, ...]:
        messages, first = [], 0
        while part := chunk(self._calls, first):
            messages.append(Calls(first=first, calls=part))
            first += len(part)
        return tuple(messages)
