"""What becomes of this worker's residual when the group has broken: the part of gradients that a codec left out.

The residual changes whenever the worker encodes. After a void step it goes back if the step is redone. It stays if the
step was applied elsewhere and this worker copies the result: then what it has sent is in that sum, and the old residual
would count twice. A worker that the others went on without starts at zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.events import Advised
from shoal.strategies.peers import Peers


class Residual:
    """Of one worker, from step to step."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._before: Mapping[str, torch.Tensor] | None = None  # at the start of a step that may have to be redone

    def begin_step(self) -> None:
        self._before = self._peers.codec.state()

    def end_step(self) -> None:
        """It is applied here: nothing of it will be redone."""
        self._before = None

    def settle(self, *, ahead: int, holds: int) -> None:
        """In a new generation. `ahead`: steps that the state which all go on with has applied and this worker has not.

        `holds`: the generation that agreed on this worker's state before.
        """
        before, self._before = self._before, None
        peers, generation = self._peers, self._peers.generation
        if peers.codec.raw:
            return
        if peers.worker not in generation.carriers:
            peers.drop_residual("the others have gone on without this worker")
        elif before is not None and ahead == 0:
            peers.codec.load(before)
        if peers.group.rank == 0:
            gone = [lost.worker for lost in generation.lost if lost.generation >= holds]
            text = f"what the codec {peers.codec.name} had left out of the gradients of worker {{}} is lost with it"
            peers.report(*(Advised(worker=peers.worker, text=text.format(worker)) for worker in gone))
