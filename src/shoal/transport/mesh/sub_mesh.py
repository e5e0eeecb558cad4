"""Some ranks of a mesh as a mesh of their own, numbered from 0. Closing it closes nothing: the whole mesh does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shoal.transport.mesh.mesh import Mesh


class SubMesh(Mesh):
    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        """`ranks` of the mesh, its own among them."""
        self._mesh = mesh
        self._ranks = list(ranks)
        self._places = {rank: place for place, rank in enumerate(self._ranks)}
        self._look: Callable[[Mapping[int, bytes]], None] | None = None
        self.rank = self._ranks.index(mesh.rank)
        self.size = len(self._ranks)

    @property
    def bytes_sent(self) -> int:  # type: ignore[override]  # counted by the whole mesh
        return self._mesh.bytes_sent

    @property
    def idle_seconds(self) -> float:  # type: ignore[override]  # counted by the whole mesh
        return self._mesh.idle_seconds

    @property
    def on_stall(self) -> Callable[[Mapping[int, bytes]], None] | None:
        return self._look

    @on_stall.setter
    def on_stall(self, look: Callable[[Mapping[int, bytes]], None] | None) -> None:
        self._look = look
        self._mesh.on_stall = None if look is None else self._look_among_some

    def _look_among_some(self, heads: Mapping[int, bytes]) -> None:
        assert self._look is not None
        self._look({self._places[rank]: head for rank, head in heads.items() if rank in self._places})

    def post(self, peer: int, header: bytes, *payloads: memoryview) -> None:
        self._mesh.post(self._ranks[peer], header, *payloads)

    def receive_into(self, peer: int, buffer: memoryview) -> None:
        self._mesh.receive_into(self._ranks[peer], buffer)

    def drain(self) -> None:
        self._mesh.drain()

    def check(self) -> None:
        self._mesh.check()

    def abort(self, reason: str, *, blamed: int | None = None) -> None:
        """`blamed` by its rank in the whole mesh, as in all that is raised here."""
        self._mesh.abort(reason, blamed=blamed)

    def close(self) -> None:
        pass
