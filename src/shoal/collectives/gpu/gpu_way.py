"""Which way the tensors of GPUs take in one group: NCCL where every rank has a GPU of one machine to itself, else
through pinned host memory.

Decided in the first collective on a GPU: all ranks are in it together, and a job that uses no GPU pays nothing.
Whichever way, an operation starts after what the caller's stream had been given before the call, and when it is done
no stream has to wait for it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.collectives.engine import Engine
from shoal.collectives.gpu.ferry import Ferry
from shoal.collectives.gpu.gpu_copies import Moment, copies_after
from shoal.collectives.memory.memory_engine import MemoryEngine

if TYPE_CHECKING:
    from shoal.collectives.carriers.beside import BesideEngine

Work = Callable[[Engine], None]


class GpuWay:
    """One per group. `abort` may come from any thread."""

    def __init__(self, engine: Engine) -> None:
        """The engine, for tensors in memory, is its owner's."""
        self._engine = engine
        self._is_decided = False
        self._nccl: BesideEngine | None = None

    @property
    def bytes_sent(self) -> int:
        """Beside those that the engine counts."""
        return 0 if self._nccl is None else self._nccl.bytes_sent

    def send_or_receive(self, moment: Moment, work: Work, engine: Engine) -> None:
        """Do work that stages its tensor by itself. The other rank's may be in memory, and it decides nothing."""
        with copies_after(moment):
            work(engine)

    def run(self, moment: Moment, work: Work, engine: Engine) -> None:
        """Do a collective's work on an engine that takes tensors of that moment's GPU. All ranks have theirs on one."""
        with copies_after(moment) as copies:
            if not self._is_decided:
                self._decide(engine, moment)
            work(engine if engine.takes_gpu else self._nccl or Ferry(engine, copies))

    def _decide(self, engine: Engine, moment: Moment) -> None:
        if isinstance(engine, MemoryEngine):  # so all ranks are on one machine
            from shoal.collectives.carriers.beside import nccl_beside  # noqa: PLC0415  only users of GPUs pay for it

            self._nccl = nccl_beside(engine, moment.device)
        self._is_decided = True

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        if self._nccl is not None:
            self._nccl.abort(reason, blamed=blamed)

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.close()
