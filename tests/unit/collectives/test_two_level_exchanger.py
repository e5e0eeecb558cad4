"""Several machines: what goes over the mesh among all, and among the first of each, is looked after alike."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import PeerLost, WorkersDisagree
from support.collectives import PATIENCE, groups, in_threads


@pytest.mark.parametrize("before", [0, 1], ids=["at once", "after the first ranks have reduced"])
def test_first_ranks_look_around_while_they_wait_in_an_operation_among_all(before: int) -> None:
    """Ranks 0 and 3 wait for ranks that are late; what each sent to the other shows that they do different things."""
    with groups("two-level", 6) as made:
        for _ in range(before):
            for pending in [group.all_reduce(torch.ones(10), label="gradients") for group in made]:
                pending.wait(PATIENCE)
        started = [
            made[rank].all_to_all([torch.zeros(3) for _ in range(6)], [torch.ones(3)] * 6, label=f"trade of {rank}")
            for rank in (0, 3)
        ]
        errors = [in_threads(lambda pending=pending: pending.wait(PATIENCE))[0] for pending in started]
        assert all(isinstance(error, WorkersDisagree | PeerLost) for error in errors), errors
        told = next(str(error) for error in errors if isinstance(error, WorkersDisagree))
        assert "rank 0 is in 'trade of 0'" in told or "rank 3 is in 'trade of 3'" in told


def test_who_is_gone_is_named_between_operations() -> None:
    with groups("two-level", 4) as made:
        for group in made:
            assert group._exchanger is not None
            group._exchanger.check()
        made[3].abort("it leaves")
        with pytest.raises(PeerLost) as lost:
            made[0]._exchanger.check()
        assert lost.value.peer == 3
