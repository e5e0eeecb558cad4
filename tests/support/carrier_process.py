"""One rank of a group over a carrier, as a process of its own: a JSON line in, a JSON line out.

-> {"connect": [addresses of all ranks], "rank": r, "generation": g, "carrier": name}   (after it printed its own)
-> {"check": name}         one of CHECKS: compares what it gets with what torch gives
-> {"start": name}         one of STARTS, in the background; {"wait": true} tells how it ended
-> {"abort": reason}
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoal.collectives.group import Pending, Reduction
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.errors import ShoalError
from shoal.strategies.peers.groups import make_exchanger
from shoal.transport.tcp.tcp import PeerListener, connect_mesh
from shoal.values import Address
from support.bits import bits_of, reductions_of, tensor_of
from support.collectives import TOKEN, generation_of

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]
FUNCTIONS: dict[Reduction, Callable[..., torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
    Reduction.PRODUCT: torch.mul,
    Reduction.AND: torch.bitwise_and,
    Reduction.OR: torch.bitwise_or,
    Reduction.XOR: torch.bitwise_xor,
    Reduction.MEAN: torch.add,  # and divided at the end
}


def values(rank: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, different on every rank: their sums are exact in every dtype."""
    numbers = torch.randint(0, 5, tuple(shape), generator=torch.Generator().manual_seed(rank))
    return (numbers > 2) if dtype is torch.bool else numbers.to(dtype)


def reduced(tensors: Sequence[torch.Tensor], reduction: Reduction = Reduction.SUM) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = FUNCTIONS[reduction](total, tensor)
    return total.div_(len(tensors), rounding_mode="trunc") if reduction is Reduction.MEAN else total


def sums(group: ThreadedGroup) -> None:
    for dtype in DTYPES:
        for shape in ((), (0,), (1,), (7, 3), (70_001,)):
            everybody = [values(rank, shape, dtype) for rank in range(group.size)]
            group.all_reduce(own := everybody[group.rank].clone(), label="a sum").wait()
            assert torch.equal(own, reduced(everybody)), (dtype, shape)


def reductions(group: ThreadedGroup) -> None:
    for reduction in Reduction:
        for dtype in (torch.uint8, torch.int16, torch.int64, torch.float32, torch.bool):
            if dtype.is_floating_point and reduction in (Reduction.AND, Reduction.OR, Reduction.XOR):
                continue
            if dtype is torch.bool and reduction in (Reduction.PRODUCT, Reduction.MEAN):
                continue
            if dtype.is_floating_point and reduction is Reduction.MEAN:
                continue
            everybody = [values(rank, (1001,), dtype) for rank in range(group.size)]
            group.all_reduce(own := everybody[group.rank].clone(), label="reduced", reduction=reduction).wait()
            assert torch.equal(own, reduced(everybody, reduction)), (dtype, reduction)
    extreme = torch.tensor([float("nan") if group.rank else 1.0, float("inf"), 3e38])
    for reduction in (Reduction.MAX, Reduction.SUM):
        group.all_reduce(own := extreme.clone(), label="extremes", reduction=reduction).wait()
        assert own[0].isnan() and own[1] == float("inf"), (reduction, own)


def large(group: ThreadedGroup) -> None:
    """Longer than the time between two looks at the mesh."""
    own = torch.full((6_000_000,), group.rank + 1.0)
    group.all_reduce(own, label="large").wait()
    assert (own == sum(range(1, group.size + 1))).all()
    output = torch.empty(2_000_000)
    group.reduce_scatter(
        output, [torch.full((2_000_000,), float(place)) for place in range(group.size)], label="l"
    ).wait()
    assert (output == group.rank * group.size).all()


def rounding(group: ThreadedGroup) -> str:
    digest = hashlib.sha256()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        own = torch.randn(50_001, generator=torch.Generator().manual_seed(group.rank)).to(dtype)
        group.all_reduce(own, label="rounded").wait()
        digest.update(own.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def bits(group: ThreadedGroup) -> str:
    """Signed zeros, NaNs with payloads and denormals: one digest of all results."""
    digest = hashlib.sha256()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        for reduction in reductions_of(dtype):
            for elements in (1, 2, 3, 17, 100, 1000, 20_001):
                own = tensor_of(dtype, elements, 10 * elements + group.rank, shift=group.rank)
                group.all_reduce(own, label="bits", reduction=reduction).wait()
                digest.update(bits_of(own).tobytes())
    return digest.hexdigest()


def several(group: ThreadedGroup) -> None:
    """Tensors of any stride travel as one, each rank's with its own weight."""
    scale = 1.0 / (group.rank + 1)
    bases = [torch.ones(20, 20), torch.ones(5), torch.ones(0), torch.ones(3, 4, 5)]
    views = [bases[0][::2, 1::3], bases[1], bases[2], bases[3].permute(2, 0, 1)]
    group.all_reduce(views, label="several", scale=scale).wait()
    expected = sum(1.0 / (rank + 1) for rank in range(group.size))
    assert all(torch.allclose(view, torch.full_like(view, expected)) for view in views)
    assert (bases[0][1::2] == 1).all()


def reduce_scatter(group: ThreadedGroup) -> None:
    for lengths in ([5] * group.size, [0] * group.size, [3 * rank for rank in range(group.size)], [70_001, 0, 1]):
        for dtype in (torch.float32, torch.int16, torch.bfloat16, torch.complex64):
            places = [lengths[place % len(lengths)] for place in range(group.size)]
            everybody = [
                [values(10 * rank + place, (n,), dtype) for place, n in enumerate(places)] for rank in range(group.size)
            ]
            own = [tensor.clone() for tensor in everybody[group.rank]]
            output = torch.empty(places[group.rank], dtype=dtype)
            group.reduce_scatter(output, own, label="parts").wait()
            assert torch.equal(output, reduced([parts[group.rank] for parts in everybody])), (lengths, dtype)
            assert all(torch.equal(a, b) for a, b in zip(own, everybody[group.rank], strict=True))


def gathers(group: ThreadedGroup) -> None:
    """All-gather and all-to-all, equal and uneven, of types that travel only too."""
    for dtype in (torch.float32, torch.bool, torch.uint16, torch.float8_e5m2, torch.complex128):
        for shapes in ([(3, 2)] * group.size, [(rank, 5) for rank in range(group.size)], [()] * group.size):
            everybody = [values(rank, shape, torch.uint8).to(dtype) for rank, shape in enumerate(shapes)]
            outputs = [torch.zeros(shape, dtype=torch.uint8).to(dtype) for shape in shapes]
            group.all_gather(outputs, everybody[group.rank], label="all").wait()
            assert all(_same(a, b) for a, b in zip(outputs, everybody, strict=True)), (dtype, shapes)

    def sent(source: int, target: int) -> torch.Tensor:
        return values(7 * source + target, ((source + 2 * target) % 4, 3), torch.float32)

    ranks = range(group.size)
    received = [torch.zeros_like(sent(source, group.rank)) for source in ranks]
    group.all_to_all(received, [sent(group.rank, target) for target in ranks], label="each to each").wait()
    assert all(torch.equal(received[source], sent(source, group.rank)) for source in ranks)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def broadcasts(group: ThreadedGroup) -> None:
    for source in range(group.size):
        for shape in ((), (0,), (3, 4), (400_001,)):
            own = values(group.rank, shape, torch.float32)
            group.broadcast(own, source, label="from one").wait()
            assert torch.equal(own, values(source, shape, torch.float32)), (source, shape)
    base = torch.full((6, 6), float(group.rank))
    group.broadcast(base[::2].t(), group.size - 1, label="strided").wait()
    assert (base[::2] == group.size - 1).all() and (base[1::2] == group.rank).all()


def messages(group: ThreadedGroup) -> None:
    """Sends between collectives; ranks that take no part need not know."""
    tensor, total = torch.full((5, 5), float(group.rank)), torch.ones(3)
    if group.rank == 0:
        group.send(tensor.t(), group.size - 1, label="a").wait()
    elif group.rank == group.size - 1:
        group.receive(tensor.t(), 0, label="a").wait()
        assert (tensor == 0).all()
    group.all_reduce(total, label="after").wait()
    assert (total == group.size).all()


def counts(group: ThreadedGroup) -> None:
    before = group.bytes_sent
    group.all_reduce(torch.ones(300_000), label="counted").wait()
    most = 2 * (group.size - 1) * 1_200_000 // group.size
    assert most <= group.bytes_sent - before < most + 2000
    assert group.idle_seconds >= 0.0 and group.current_label == ""


def gather(group: ThreadedGroup, lengths: Sequence[int]) -> Pending:
    outputs = [torch.ones(length) for length in lengths]
    return group.all_gather(outputs, torch.ones(lengths[group.rank]), label="parts")


CHECKS: dict[str, Callable[[ThreadedGroup], str | None]] = {
    check.__name__: check
    for check in (
        sums,
        large,
        reductions,
        rounding,
        bits,
        several,
        reduce_scatter,
        gathers,
        broadcasts,
        messages,
        counts,
    )
}
STARTS: dict[str, Callable[[ThreadedGroup], Pending]] = {
    "gradients": lambda group: group.all_reduce(torch.ones(10), label="gradients"),
    "loss": lambda group: group.all_reduce(torch.ones(10), label="loss"),
    "eleven": lambda group: group.all_reduce(torch.ones(11), label="gradients"),
    "doubles": lambda group: group.all_reduce(torch.ones(10).double(), label="gradients"),
    "maximum": lambda group: group.all_reduce(torch.ones(10), label="gradients", reduction=Reduction.MAX),
    "weights": lambda group: group.broadcast(torch.ones(10), 0, label="gradients"),
    "parts 2 1 1": lambda group: gather(group, (2, 1, 1)),
    "parts 1 2 1": lambda group: gather(group, (1, 2, 1)),
}


def until_failure(group: ThreadedGroup) -> dict[str, Any]:
    tensor = torch.zeros(2_000_000)
    say(running=True)
    try:
        while True:
            group.all_reduce(tensor, label="again and again").wait()
    except ShoalError as error:
        return told(error)


def told(error: BaseException) -> dict[str, Any]:
    return {"error": type(error).__name__, "peer": getattr(error, "peer", None), "text": str(error)}


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Rank:
    def __init__(self) -> None:
        self._listener = PeerListener("127.0.0.1", TOKEN)
        self._group: ThreadedGroup | None = None
        self._pending: Pending | None = None
        say(address=[self._listener.address.host, self._listener.address.port])

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._do(order)
        except (ShoalError, AssertionError) as error:
            return told(error)

    def _do(self, order: dict[str, Any]) -> dict[str, Any]:
        if "connect" in order:
            self.close()
            addresses = [Address(*address) for address in order["connect"]]
            generation = generation_of(addresses, order["generation"])
            mesh = connect_mesh(self._listener, generation, order["rank"], 60.0)
            assert mesh is not None
            exchanger = make_exchanger(order["carrier"], mesh, generation.number, "127.0.0.1")
            self._group = ThreadedGroup(exchanger, generation.number, post=exchanger)
            return {}
        assert self._group is not None
        if "check" in order:
            return {"result": CHECKS[order["check"]](self._group)}
        if "start" in order:
            self._pending = STARTS[order["start"]](self._group)
            return {"done": self._pending.is_done}
        if "wait" in order:
            assert self._pending is not None
            self._pending.wait()
            return {}
        if "abort" in order:
            self._group.abort(order["abort"])
            return {}
        return until_failure(self._group)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def end(self) -> None:
        self.close()
        self._listener.close()


def main() -> None:
    torch.set_num_threads(1)
    rank = Rank()
    for line in sys.stdin:
        say(**rank.do(json.loads(line)))
    rank.end()


if __name__ == "__main__":
    main()
