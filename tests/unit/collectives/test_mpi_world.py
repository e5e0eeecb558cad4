"""What MPICH is told by the stand-in for a process manager."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from shoal.collectives.carriers.mpi_world import answer


def test_a_process_is_alone_in_a_world_of_its_own_name() -> None:
    assert answer("cmd=get_my_kvsname\n", "shoal_1") == "cmd=my_kvsname rc=0 kvsname=shoal_1"
    assert answer("cmd=get_universe_size\n", "shoal_1") == "cmd=universe_size rc=0 size=1"
    assert answer("cmd=get kvsname=shoal_1 key=PMI_hwloc_xmlfile\n", "shoal_1").startswith("cmd=get_result rc=-1")


@given(some.text())
def test_whatever_is_asked_gets_one_line(asked: str) -> None:
    text = answer(asked, "shoal_1")
    assert text.startswith("cmd=")
    assert "rc=" in text
    assert len(text.splitlines()) == 1
