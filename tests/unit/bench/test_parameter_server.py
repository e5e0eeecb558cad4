"""Which bounds `shoal bench parameter-server` says are held, and against what."""

from __future__ import annotations

from shoal.bench.parameter_server.figures import bounds

TRANSFER = {
    "Shoal, shared": [0.02, 0.03, 0.04],
    "Shoal, sent": [0.1],
    "torch RPC, 1 at once": [0.15],
    "torch RPC, 16 at once": [0.06],
    "torch RPC, 16 at once, tuned": [0.01],
    "two sockets": [0.09],
    "two sockets, tuned": [0.08],
}


def test_torch_rpc_counts_as_scripts_use_it_and_at_its_fastest() -> None:
    one_call, fastest, sockets = bounds({"transfer": TRANSFER})
    assert (round(one_call.found, 6), one_call.holds) == (5.0, True)
    assert (round(fastest.found, 6), fastest.holds) == (2.0, False)
    assert (round(sockets.found, 6), sockets.holds) == (0.8, True)


def test_free_workers_must_be_fast_and_all_reduce_slow() -> None:
    free, together = bounds({"slow": {"own": 50.0, "asynchronous": 44.0, "all-reduce": 25.0}})
    assert (free.holds, free.rule, free.limit) == (False, "at least", 0.9)
    assert (together.holds, together.rule, together.limit) == (False, "below", 0.5)
