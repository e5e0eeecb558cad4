"""Which way GPU tensors take in one group: by NCCL, or through pinned host memory, as `carrier_choice` has it.

NCCL is started in the first collective on a GPU: all ranks are in it together, and a job that uses no GPU pays nothing.
There they compare once more which GPUs their tensors are on. Either way, an operation starts after the work that the
caller's stream had been given before the call, and once it is done no stream has to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.collectives.exchanger import Exchanger
from shoal.collectives.gpu.carrier_choice import CarrierChoice
from shoal.collectives.gpu.ferry import Ferry
from shoal.collectives.gpu.gpu_copies import StreamPoint, copies_after

if TYPE_CHECKING:
    from shoal.collectives.carriers.beside import BesideExchanger

Work = Callable[[Exchanger], None]


@dataclass(frozen=True)
class GpuTerms:
    """On what terms a group may use NCCL. The same on all ranks, but for the address."""

    machines: int  # that the ranks are on
    address: str  # of this rank, which the others can reach
    kept: str = ""  # why Shoal's own transport is wanted; empty: it is not
    choice: CarrierChoice | None = None  # made when the group was formed; None: not made yet


class GpuWay:
    """One per group. `abort` may come from any thread."""

    def __init__(self, exchanger: Exchanger, terms: GpuTerms | None = None) -> None:
        """`exchanger` is for tensors in host memory; this object does not own it. Without terms there is no NCCL."""
        self._exchanger = exchanger
        self._terms = terms
        self._is_decided = False
        self._nccl: BesideExchanger | None = None

    @property
    def bytes_sent(self) -> int:
        """Without the bytes that the exchanger counts."""
        return 0 if self._nccl is None else self._nccl.bytes_sent

    def send_or_receive(self, moment: StreamPoint, work: Work, exchanger: Exchanger) -> None:
        """Do work that copies its tensor to the CPU itself. It must not decide the way: the peer's may be on a CPU."""
        with copies_after(moment):
            work(exchanger)

    def run(self, moment: StreamPoint, work: Work, exchanger: Exchanger) -> None:
        """Do a collective's work on an exchanger that takes tensors of that GPU. All ranks' tensors are on GPUs."""
        with copies_after(moment) as copies:
            if not self._is_decided:
                self._decide(exchanger, moment)
            work(exchanger if exchanger.takes_gpu else self._nccl or Ferry(exchanger, copies))

    def _decide(self, exchanger: Exchanger, moment: StreamPoint) -> None:
        if self._terms is not None and not exchanger.takes_gpu:
            from shoal.collectives.carriers.beside import nccl_beside  # noqa: PLC0415  only users of GPUs pay for it

            self._nccl = nccl_beside(exchanger, moment.device, self._terms)
        self._is_decided = True

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        if self._nccl is not None:
            self._nccl.abort(reason, blamed=blamed)

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.close()
