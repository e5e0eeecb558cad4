"""The interface of an exchanger, which carries out the collectives of a group, one at a time.

An exchanger works in the calling thread, on flat contiguous CPU tensors, and returns when the results are complete and
the given memory is free to change. Every rank's exchanger is given the same operations in the same order. Failures
raise `PeerLost` (naming the rank), `Aborted` or `WorkersDisagree`; after a failure the exchanger is unusable. Not here:
queues, threads, strides and devices (`threaded_group`, `flat_tensors`). Implementations: `scheduled_exchanger` (any
mesh, any schedule), `memory_exchanger` (processes of one machine), `two_level_exchanger` (several machines), `carriers`
(other libraries).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import torch

from shoal.collectives.group import Reduction
from shoal.wire.frames import FrameKind


class Operation(msgspec.Struct, frozen=True):
    """What all ranks must agree on. Exchangers compare it and name the difference."""

    kind: FrameKind
    sequence: int  # number of the collective in its group, from 0
    label: str  # the operation's purpose, cut to 64 bytes
    dtype: torch.dtype
    elements: int  # of the whole operation, or of this turn of it
    reduction: Reduction | None = None
    scale: float = 1.0  # of this rank's contribution to a sum; ranks may differ
    is_flat: bool = False  # this rank's tensors can be used as they are, even outside inference mode
    key: str = ""  # names the tensors of an all-reduce that a codec may encode between hosts. Empty: never encoded
    turn: int = 0  # number of this part of an operation that is carried out in several, one after the other

    @property
    def words(self) -> str:
        """Kind, label and number, for error texts."""
        return f"{self.kind.name.lower().replace('_', '-')} {self.label!r}, operation {self.sequence}"


class PointToPoint(ABC):
    """Tensors between two ranks, in the calling thread, in the order of the calls in each direction of a pair."""

    @abstractmethod
    def send(self, operation: Operation, tensor: torch.Tensor, target: int) -> None:
        """Return when the memory is free to change."""

    @abstractmethod
    def receive(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        """Return when the tensor is whole."""

    @abstractmethod
    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """Like `Exchanger.abort`."""

    @abstractmethod
    def close(self) -> None:
        """Like `Exchanger.close`."""


class Exchanger(ABC):
    """Collectives among ranks 0..size-1. `abort` may come from any thread; the rest is for one thread at a time."""

    rank: int
    size: int
    bytes_sent: int  # so far, to all peers: what a link would have carried
    idle_seconds: float  # time spent waiting for late peers
    takes_gpu = False  # takes GPU tensors too, on the current stream
    needs_a_core = False  # operations keep a core busy instead of waiting for a link
    least_bytes = 0  # from this size on, links take their time for bytes rather than for rounds; 0: not known
    why: str = ""  # why bytes take the way they take, for people

    @abstractmethod
    def all_reduce(self, operation: Operation, tensors: Sequence[torch.Tensor]) -> None:
        """The tensors, taken as one run of elements, become the reduction over all ranks, in place."""

    @abstractmethod
    def reduce_scatter(self, operation: Operation, output: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        """`output` becomes the reduction of every rank's `parts[rank]`; parts stay as they are and may be empty."""

    @abstractmethod
    def all_gather(self, operation: Operation, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """`outputs[r]` becomes rank r's tensor; sizes may differ by rank."""

    @abstractmethod
    def all_to_all(self, operation: Operation, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """`outputs[r]` becomes rank r's `inputs[rank]`. Tensors may be empty: gather and scatter use that."""

    @abstractmethod
    def broadcast(self, operation: Operation, tensor: torch.Tensor, source: int) -> None:
        """Every rank's tensor becomes the source's."""

    def is_awaited(self, awaited: bool) -> None:  # noqa: B027  most exchangers wait in one way
        """Whether a caller waits for operations from now on; if not, they run beside other work and leave it time."""

    def missing(self) -> list[int]:
        """From any thread: the ranks that the running operation waits for, as far as this rank can tell."""
        return []

    def check(self) -> None:  # noqa: B027  not all can tell
        """Between operations: raise `PeerLost` if a rank is known to be gone, without waiting."""

    @abstractmethod
    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """Running and later operations fail with `Aborted`; peers notice, and learn which rank this one blames."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Safe to call twice."""
