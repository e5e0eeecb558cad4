"""The gloo carrier between threads of one process: waits, and that many groups leave nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from shoal.collectives import texts
from shoal.collectives.carriers.carrier import CarrierFailed
from shoal.collectives.carriers.gloo import TIME_IS_OVER, GlooCarrier
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import UsageError
from shoal.strategies.peers.groups import make_exchanger
from shoal.transport.mesh.in_process import in_process_meshes
from support.collectives import in_threads, succeed


class Scripted:
    """A work of torch's that does one thing after the other; it claims to be complete all the while."""

    def __init__(self, *errors: str) -> None:
        self._errors = list(errors)

    def wait(self, _timeout: object) -> bool:
        if self._errors:
            raise RuntimeError(self._errors.pop(0))
        return True

    def is_completed(self) -> bool:
        return True


def is_done(work: Scripted) -> bool:
    return GlooCarrier._is_done(object.__new__(GlooCarrier), work, 0.01)  # type: ignore[arg-type]  a stand-in


def test_a_work_that_ends_just_after_the_time_is_over_has_not_failed() -> None:
    work = Scripted(TIME_IS_OVER)
    assert [is_done(work), is_done(work)] == [False, True]


def test_what_gloo_says_of_a_failure_is_kept() -> None:
    with pytest.raises(CarrierFailed, match="Connection closed by peer"):
        is_done(Scripted("[pair.cc:553] Connection closed by peer"))


def held() -> tuple[int, int]:
    """Descriptors and threads, those of libraries too."""
    descriptors, tasks = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    return descriptors, tasks


@pytest.mark.long
def test_forty_groups_one_after_the_other_leave_no_descriptor_and_no_thread() -> None:
    def form_and_use() -> None:
        meshes = in_process_meshes(2)
        exchangers = succeed(*(lambda mesh=mesh: make_exchanger("gloo", mesh, 1, "127.0.0.1") for mesh in meshes))
        made = [ThreadedGroup(exchanger, 1, post=exchanger) for exchanger in exchangers]
        tensors = [torch.ones(10) for _ in made]
        started = [group.all_reduce(tensor, label="sum") for group, tensor in zip(made, tensors, strict=True)]
        for pending in started:
            pending.wait()
        assert all((tensor == 2).all() for tensor in tensors)
        in_threads(*(group.close for group in made))

    form_and_use()
    before = held()
    for _ in range(40):
        form_and_use()
    patience = time.monotonic() + 10.0  # gloo's own threads end a moment after their group
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < patience, (before, held())
        time.sleep(0.05)


def test_an_unknown_carrier_is_refused_and_the_mesh_closed() -> None:
    meshes = in_process_meshes(2)
    with pytest.raises(UsageError, match=texts.no_carrier("pigeons")):
        make_exchanger("pigeons", meshes[0], 1, "127.0.0.1")
    meshes[1].close()
