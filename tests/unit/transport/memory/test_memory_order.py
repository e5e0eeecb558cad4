"""Memory is shared only where the order of writes is kept, by the processor or by fences; else sockets carry bytes."""

from __future__ import annotations

import pytest
import torch

from shoal.collectives.assembly import GroupConfig, group_over
from shoal.links.measure import told
from shoal.links.plan import FIXED
from shoal.transport.memory import memory_order
from shoal.transport.memory.arena import Arena, PeerArena
from shoal.transport.memory.memory_order import keeps_order, why_not_shared
from shoal.transport.memory.neighbours import form
from shoal.transport.mesh.in_process import in_process_meshes
from shoal.transport.mesh.mesh_exchange import exchange_over
from support.collectives import IN_MEMORY, groups, succeed
from support.mailboxes import mailboxes

WEAK = ("aarch64", "arm64", "armv7l", "ppc64le", "riscv64", "s390x", "sparc64", "alpha", "loongarch64", "")
WHY = why_not_shared("aarch64", has_fence=False)


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "i686", "i386"])
def test_x86_keeps_the_order_and_needs_nothing(machine: str) -> None:
    assert keeps_order(machine)
    assert why_not_shared(machine, has_fence=False) == why_not_shared(machine, has_fence=True) == ""


@pytest.mark.parametrize("machine", WEAK)
def test_whatever_is_not_known_to_keep_it_needs_fences(machine: str) -> None:
    assert not keeps_order(machine)
    assert why_not_shared(machine, has_fence=True) == ""
    assert machine in (why := why_not_shared(machine, has_fence=False)) and "sockets" in why


def test_without_order_ranks_of_one_machine_share_no_memory_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_order, "why_not", WHY)
    meshes = list(in_process_meshes(3))
    hoods = succeed(*(lambda mesh=mesh: form(exchange_over(mesh, 1), mesh.rank, mesh.size) for mesh in meshes))
    assert all((hood.hosts, hood.why_not_shared) == (((0,), (1,), (2,)), WHY) for hood in hoods)
    made = [group_over(mesh, hood, GroupConfig()) for mesh, hood in zip(meshes, hoods, strict=True)]
    tensors = [torch.ones(1000) for _ in made]
    for pending in [group.all_reduce(tensor, label="sum") for group, tensor in zip(made, tensors, strict=True)]:
        pending.wait()
    assert all((tensor == 3).all() for tensor in tensors)
    assert all(group.why == WHY for group in made)
    assert WHY in told(FIXED, 1, "auto", memory=made[0].why).reason
    for group in made:
        group.close()


def test_without_order_the_arena_of_another_process_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of parameter servers, too, are sent then."""
    arena = Arena.create(4096)
    opened = PeerArena.open(arena.offer)
    assert opened is not None
    opened.close()
    monkeypatch.setattr(memory_order, "why_not", WHY)
    assert PeerArena.open(arena.offer) is None
    arena.close()


class Fences:
    """Counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._fence = memory_order.fence
        monkeypatch.setattr(memory_order, "is_weak", True)
        monkeypatch.setattr(memory_order, "fence", self._made)

    def _made(self) -> None:
        self.count += 1
        self._fence()


@pytest.mark.parametrize("kind", [IN_MEMORY, "memory-python", "memory-python-slots"])
def test_on_a_weak_processor_loops_in_python_fence_what_they_tell(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    with groups(kind, 2) as made:
        tensors = [torch.ones(1000, dtype=torch.int16) for _ in made]  # has no loop in C
        calls = [lambda group=group: group.here.all_reduce(tensors[group.rank], label="sum") for group in made]
        succeed(*calls)
        assert all((tensor == 2).all() for tensor in tensors)
        assert fences.count >= 4  # each rank before it tells, and after it has heard


@pytest.mark.parametrize("lane", ["memory", "staged"])
def test_on_a_weak_processor_rings_are_fenced_at_both_ends(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fences = Fences(monkeypatch)
    with mailboxes(lane, 2) as made:
        for elements in (4, 100_000):
            received = torch.zeros(elements)
            delivery, before = made[0].receive(received, 1), fences.count
            sent = made[1].send(torch.ones(elements), 0)
            assert delivery.wait(30) and sent.wait(30)
            assert (received == 1).all()
            assert fences.count > before
        made[1].close()
        assert made[0]._progress._lanes[0]._neighbours[1].ending is not None
