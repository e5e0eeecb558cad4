"""What must be true of every simulated job, whatever fails: checked at each step, each checkpoint and at the end.

The history knows everything that any process ever did; no process knows that much. A breach raises `Violation` with the
invariant's name. Not here: how a job is simulated (`cluster`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from shoal.checkpoint.published.manifest import parse_name
from shoal.plan.members.model import Task, ToyState
from shoal.values import Generation

ONE_STATE = "members at the same generation and step have the same state"
ONE_CHAIN = "sources, checkpoints and results lie on one chain"
EACH_SAMPLE_ONCE = "each sample counts once in each epoch"
PROGRESS = "the job finishes once faults have stopped"
CURRENT_ONLY = "only the current generation publishes checkpoints and results"
FURTHEST = "nobody who brings the job's state goes back behind it, unless all go back to a checkpoint"
ONE_GROUP = "no step begins in a generation once one without any of its members was formed"
RUN_TO_ITS_END = (
    "a job that finished has run the code behind its loop to its end, on every member and on one as the first"
)
DECIDED_ONCE = "a generation is decided once, and written down before anybody hears of it"


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(frozen=True)
class Publication:
    checkpoint: str
    state: ToyState
    generation: int  # the one that wrote it


@dataclass(frozen=True)
class Restore:
    generation: int
    state: int  # identity of the state that the job went back to


class History:
    """Everything that happened to the job's state."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._states: dict[int, ToyState] = {1: ToyState()}
        self._at: dict[tuple[int, int], ToyState] = {}  # by generation and step
        self._restores: list[Restore] = []
        self._publications: list[Publication] = []
        self._results: dict[int, ToyState] = {}  # by worker at the end of its script
        self._accepted: dict[int, ToyState] = {}  # by worker, those results that count
        # By attempt and piece: workers that ran this code behind the loop to its end, and whether as the first one.
        self._behind: dict[tuple[int, int], dict[int, bool]] = {}
        self.generations: list[Generation] = []  # decided, in order
        self.heard = 0  # number of the newest one that was told to anybody

    @property
    def steps(self) -> int:
        """Applied steps, counted again where they were done again."""
        return len(self._at)

    @property
    def publications(self) -> int:
        return len(self._publications)

    @property
    def restores(self) -> int:
        """How many generations after the first went back to a checkpoint or to the top."""
        return len({restore.generation for restore in self._restores}) - 1

    # What happens

    def applied(self, worker: int, state: ToyState) -> None:
        place = (state.generation, state.step)
        other = self._at.setdefault(place, state)
        if other.identity != state.identity:
            raise Violation(ONE_STATE, f"worker {worker} has another state in generation {place[0]}, step {place[1]}")
        self._states[state.identity] = state

    def began(self, worker: int, number: int) -> None:
        """A worker begins a step in a generation; the absence limit allows it."""
        members = next(generation for generation in reversed(self.generations) if generation.number == number).members
        mine = {member.worker for member in members}
        for later in reversed(self.generations):
            if later.number <= number:
                return
            if not mine & {member.worker for member in later.members}:
                text = f"worker {worker} goes on in generation {number} although {later.number} is there"
                raise Violation(ONE_GROUP, text)

    def took(self, worker: int, before: ToyState, after: ToyState) -> None:
        """A worker replaces the state that it brought by the one that all agreed on."""
        if after.step < before.step:
            raise Violation(FURTHEST, f"worker {worker} goes back from step {before.step} to {after.step}")

    def restored(self, generation: int, state: ToyState) -> None:
        restore = Restore(generation, state.identity)
        if restore not in self._restores:
            self._restores.append(restore)

    def decided(self, generation: Generation) -> None:
        last = self.generations[-1].number if self.generations else 0
        if generation.number <= last:
            raise Violation(DECIDED_ONCE, f"generation {generation.number} is decided after generation {last}")
        self.generations.append(generation)

    def told(self, generation: Generation) -> None:
        if generation not in self.generations[-8:]:
            raise Violation(DECIDED_ONCE, f"generation {generation.number} is told and not written down")
        self.heard = max(self.heard, generation.number)

    def asked_to_publish(self, checkpoint: str) -> None:
        current = self.generations[-1].number if self.generations else 0
        place = parse_name(checkpoint)
        if place is None or place[1] != current:
            raise Violation(CURRENT_ONLY, f"{checkpoint} is about to be published in generation {current}")

    def published(self, checkpoint: str, generation: int, states: list[ToyState]) -> ToyState:
        """Returns the one state that all parts belong to."""
        if len({state.identity for state in states}) != 1:
            raise Violation(ONE_STATE, f"the parts of {checkpoint} are of different states")
        self._publications.append(Publication(checkpoint, states[0], generation))
        return states[0]

    def ran_behind(self, worker: int, attempt: int, piece: int, *, is_first: bool) -> None:
        """A worker has run a piece of the code behind the loop to its end."""
        self._behind.setdefault((attempt, piece), {})[worker] = is_first

    def finished(self, worker: int, state: ToyState) -> None:
        """A worker's script is done; the coordinator decides whether that counts."""
        self._results[worker] = state

    def is_accepted(self, worker: int) -> bool:
        return worker in self._accepted

    def accepted(self, worker: int) -> None:
        """The coordinator has accepted that a worker is done: its result counts."""
        current = self.generations[-1]
        if current.rank_of(worker) is None:
            raise Violation(CURRENT_ONLY, f"worker {worker} finished and is not in generation {current.number}")
        self._accepted[worker] = self._results[worker]

    # At the end

    def check_end(self) -> ToyState:
        """Check a job that says it finished; returns the state that it finished with."""
        if not self._accepted:
            raise Violation(CURRENT_ONLY, "the job finished without a result")
        if len({state.identity for state in self._accepted.values()}) != 1:
            raise Violation(ONE_CHAIN, f"workers {sorted(self._accepted)} finished with different states")
        result = next(iter(self._accepted.values()))
        self._check_behind(result.attempt)
        chain = self._chain(result)
        self._check_samples(chain)
        self._check_publications({state.identity for state in chain})
        return result

    def _check_behind(self, attempt: int) -> None:
        for piece in (1, 2):
            ran = self._behind.get((attempt, piece), {})
            if not any(ran.values()):
                raise Violation(
                    RUN_TO_ITS_END, f"piece {piece} of attempt {attempt} was run by {sorted(ran)}, none first"
                )
        if left_out := set(self._accepted) - set(ran):
            raise Violation(RUN_TO_ITS_END, f"workers {sorted(left_out)} have not run the last piece")

    def _chain(self, state: ToyState) -> list[ToyState]:
        """The states from the result back to the beginning."""
        found = [state]
        while found[-1].parent:
            found.append(self._states[found[-1].parent])
        return found

    def _check_samples(self, chain: list[ToyState]) -> None:
        used = Counter(sample for state in chain for sample in state.samples)
        wanted = {(epoch, index) for epoch in range(self._task.epochs) for index in range(self._task.samples)}
        wrong = [sample for sample in wanted | set(used) if used[sample] != (1 if sample in wanted else 0)]
        if wrong:
            epoch, index = min(wrong)
            text = f"sample {index} of epoch {epoch} counts {used[epoch, index]} times, and {len(wrong) - 1} more"
            raise Violation(EACH_SAMPLE_ONCE, text)

    def _check_publications(self, chain: set[int]) -> None:
        """Each lies on the chain, or after a checkpoint to which the job went back later."""
        for publication in self._publications:
            if publication.state.identity in chain:
                continue
            ancestors = {state.identity for state in self._chain(publication.state)}
            if not any(
                restore.generation > publication.generation and restore.state in ancestors for restore in self._restores
            ):
                raise Violation(ONE_CHAIN, f"{publication.checkpoint} is not on the way to the result")
