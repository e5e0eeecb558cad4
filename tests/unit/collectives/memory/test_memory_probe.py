"""Ways between ranks of one machine are tried out when a group forms: who is lost then has a name too."""

from __future__ import annotations

import pytest

from shoal.collectives.assembly import GroupConfig, memory_exchanger
from shoal.errors import PeerLost
from shoal.transport.mesh.in_process import in_process_meshes
from support.memory_groups import neighbourhoods


def test_who_is_lost_while_ways_are_tried_out_is_named_by_its_rank_in_the_group() -> None:
    hoods = neighbourhoods(list(in_process_meshes(4)), [[0, 1], [2, 3]])
    teams = [hood.team for hood in hoods if hood.team is not None]
    teams[3].give_up("the next generation forms")
    with pytest.raises(PeerLost, match="rank 3 left") as error:
        memory_exchanger(hoods[2], 2, GroupConfig())
    assert error.value.peer == 3
    for team in teams:
        team.close()
