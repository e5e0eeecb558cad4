"""The interface of a group: the workers of one generation, as a collective sees them.

Operations start in the order of the calls, and all ranks must call them in the same order; each returns at once with a
`Pending`. Do not touch a tensor that was given to an operation until that `Pending` is done. A label says what the
operation is for ("gradients 3", "mean of loss"): ranks whose labels, dtypes or sizes differ at the same point get
`WorkersDisagree`, which quotes both. After any failure the group is unusable: the next generation makes another.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch


class Reduction(enum.Enum):
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"
    AND = "and"  # of bits; of truth values for booleans
    OR = "or"
    XOR = "xor"
    MEAN = "mean"  # of whole or complex numbers; floating point numbers are scaled and summed instead. See `mean`


class Pending:
    """An operation that was started. `wait` returns when it is complete, or raises the error that made it fail."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.error: BaseException | None = None  # why the operation failed, once it is done
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def wait(self, seconds: float | None = None) -> bool:
        """False if the operation is not done in time."""
        if not self._done.wait(seconds):
            return False
        if self.error is not None:
            raise self.error
        return True

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it once: in the thread that finishes the operation, or at once if the operation is done already."""
        self._callbacks.append(callback)
        if self._done.is_set():
            self._call_back()

    def finish(self, error: BaseException | None = None) -> None:
        """Called once, by the group."""
        self.error = error
        self._done.set()
        self._call_back()

    def _call_back(self) -> None:
        # Two threads may get here at once: the one that takes a callback from the list calls it.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            callback()


class Group(ABC):
    """Collectives among the ranks 0..size-1 of one generation. Gathering to one rank and scattering from one are
    all-to-all with empty tensors; reducing to one rank is reduce-scatter with empty tensors."""

    rank: int
    size: int
    generation: int

    @property
    def here(self) -> Group:
        """The same group for callers that would wait at once: operations may run in their thread."""
        return self

    @property
    def needs_a_core(self) -> bool:
        """Operations keep a core of this machine busy, because all ranks are on it and none waits for a link."""
        return False

    @property
    def least_bytes(self) -> int:
        """From this size on, links take their time for bytes rather than for rounds of messages. 0: not known."""
        return 0

    @abstractmethod
    def all_reduce(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor],
        *,
        label: str,
        reduction: Reduction = Reduction.SUM,
        scale: float = 1.0,
        key: str = "",
    ) -> Pending:
        """Every rank's tensors become the reduction of all of them, in place, bit-identical everywhere.

        Several tensors of one dtype travel as one. This rank's values count `scale` times in a sum; ranks may differ.
        A `key` lets the job's codec encode a sum of floating point numbers between hosts: it names these tensors, the
        same in every step and on every rank. Without a key nothing is ever encoded.
        """

    @abstractmethod
    def reduce_scatter(
        self,
        output: torch.Tensor,
        tensors: list[torch.Tensor],
        *,
        label: str,
        reduction: Reduction = Reduction.SUM,
        scale: float = 1.0,
    ) -> Pending:
        """`output` becomes the reduction of every rank's `tensors[rank]`. Shapes may differ by position.

        This rank's values count `scale` times in a sum. `output` may be the memory of its own part.
        """

    @abstractmethod
    def all_gather(self, outputs: list[torch.Tensor], tensor: torch.Tensor, *, label: str) -> Pending:
        """`outputs[r]` becomes rank r's tensor. Shapes may differ by rank."""

    @abstractmethod
    def all_to_all(self, outputs: list[torch.Tensor], tensors: list[torch.Tensor], *, label: str) -> Pending:
        """`outputs[r]` becomes rank r's `tensors[rank]`. Shapes may differ; a tensor may be empty."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        """Every rank's tensor becomes the source's, in place."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, target: int, *, label: str) -> Pending:
        """Send to one rank, which must receive."""

    @abstractmethod
    def receive(self, tensor: torch.Tensor, source: int, *, label: str) -> Pending:
        """Receive from one rank, which must send."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """From any thread: running and later operations fail with `Aborted`; peers notice."""

    @abstractmethod
    def close(self) -> None:
        """Let started operations finish, then release everything. Safe to call twice."""
