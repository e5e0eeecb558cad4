"""What a worker concludes about the servers' ledger from the maps and the origins that it hears."""

from __future__ import annotations

from shoal.parameters.client.lineage import Lineage
from shoal.values import ServerMap
from support.model_tables import server_map


def map_of(*servers: int) -> ServerMap:
    return server_map([*servers], [*servers], [*servers])


def test_a_ledger_outlives_its_servers_while_each_map_shares_one_with_the_map_before() -> None:
    lineage = Lineage()
    for servers in ((0, 1), (1, 2), (2, 3)):
        assert not lineage.map_changed(map_of(*servers))
        assert not lineage.heard_origin(1)
    assert lineage.origin == 1


def test_a_ledger_is_lost_with_all_servers_of_a_map() -> None:
    lineage = Lineage()
    lineage.map_changed(map_of(0, 1))
    lineage.heard_origin(1)
    assert lineage.map_changed(map_of(2))
    assert not lineage.heard_origin(4), "the loss was known before the others said what they have"
    assert lineage.origin == 4


def test_a_server_that_came_too_late_for_a_copy_tells_of_the_loss() -> None:
    lineage = Lineage()
    for servers in ((0, 1), (0, 1, 2), (2,)):
        assert not lineage.map_changed(map_of(*servers))
        assert lineage.heard_origin(3 if servers == (2,) else 1) == (servers == (2,))


def test_a_loss_counts_until_the_worker_begins_anew() -> None:
    lineage = Lineage()
    for servers in ((0, 1), (2,), (2, 3)):
        lineage.map_changed(map_of(*servers))
    assert lineage.is_lost
    lineage.begin_anew()
    assert not lineage.is_lost
    lineage.map_changed(map_of(3, 4))
    assert not lineage.is_lost
