"""A codec between workers and servers: pushes and values are encoded where memory is not shared, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from shoal.codecs.codec import Codec, Leg, TensorKey
from shoal.codecs.registry import codec_by_name
from shoal.errors import ServerRefused
from shoal.parameters.blocks.block_codec import BlockCodec
from shoal.parameters.blocks.table_blocks import blocks_of, table_bytes
from shoal.parameters.client.parameter_client import EnrolTerms, OutgoingPush, ParameterClient
from shoal.wire.ledger_entries import Committed
from shoal.wire.tables import TableSpec
from support.offers import CODECS, offer
from support.server_groups import JOB, LR, Group, group_of, pulled, table_for, terms_of, values_of, wait_until
from support.sparse_codec import Sparse

SPARSE = "sparse:above=2"


@pytest.fixture(autouse=True)
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    offer(tmp_path / "site", "shoal.codecs", **CODECS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield


class Worker:
    """Worker 0 of a job of its own, and what its servers should have."""

    def __init__(self, group: Group, text: str = SPARSE, *, codec: Codec | None = None, shares: bool = False) -> None:
        self.table: TableSpec = table_for()
        self.codec = codec_by_name(text) if codec is None else codec
        self.client: ParameterClient = group.client(shares_memory=shares)
        self.client.define(self.table, BlockCodec(self.table, text, self.codec))
        self.client.enrol(EnrolTerms(1, (0,), "asynchronous", scaling="none"))
        self.client.assign(values_of(self.table, 0), None, 0)
        self.expected = values_of(self.table, 0)
        self._reference = type(self.codec)(self.codec.settings)  # encodes each gradient once, whatever happens

    def push(self, seed: int) -> int:
        return self.commit(self.put(seed))

    def put(self, seed: int) -> OutgoingPush:
        push = self.client.begin_push()
        for name, gradient in values_of(self.table, seed).items():
            push.put(name, gradient)
        return push

    def commit(self, push: OutgoingPush) -> int:
        """Number of the entry."""
        answer = self.client.commit(push, terms_of(self.table))
        assert isinstance(answer, Committed)
        return answer.number

    def expect(self, seed: int) -> None:
        """What a push of all blocks, encoded, does to the values."""
        for block in blocks_of(self.table):
            name = self.table.tensors[block.tensor].name
            key, part = TensorKey(name, Leg.CONTRIBUTION, block.start), slice(block.start, block.stop)
            arrived = torch.empty(block.stop - block.start)
            self._reference.decode(key, self._reference.encode(key, values_of(self.table, seed)[name][part]), arrived)
            self.expected[name][part] -= LR * arrived

    def assert_values(self, at_least: int) -> None:
        found = pulled(self.client, self.table, at_least)
        assert all(torch.equal(found[name], self.expected[name]) for name in found)


def test_a_push_is_encoded_and_what_it_leaves_out_comes_with_later_ones() -> None:
    with group_of(2) as group:
        worker = Worker(group)
        before = worker.client.sent.over_network
        for seed in range(1, 4):
            number = worker.push(seed)
            worker.expect(seed)
        sent = worker.client.sent.over_network - before
        assert sent < 3 * table_bytes(worker.table.tensors) / 2, "less than half of the bytes"
        worker.assert_values(number)
        left = sum(float(tensor.abs().sum()) for tensor in worker.codec.state().values())
        assert left > 0, "something was left out"


def test_servers_that_see_the_workers_memory_get_what_it_has() -> None:
    with group_of(2) as group:
        worker = Worker(group, shares=True)
        number = worker.push(1)
        for name, gradient in values_of(worker.table, 1).items():
            worker.expected[name] -= LR * gradient
        worker.assert_values(number)
        assert not worker.codec.state()


def copies(group: Group) -> dict[int, list[bytes]]:
    """By block: its values on each of its holders."""
    found: dict[int, list[bytes]] = {}
    for server in group.servers.values():
        holding = server._spaces[JOB].state.holding
        assert holding is not None
        for place, block in enumerate(holding.layout.blocks):
            found.setdefault(block, []).append(bytes(holding.shard.read(place, place + 1)))
    return found


def test_all_holders_of_a_block_have_the_same_bits_wherever_they_are() -> None:
    """Server 1 is as on another machine: its blocks are encoded for their holders on this one too."""
    with group_of(3, replicas=2) as group:
        worker = Worker(group, shares=True)
        worker.client._core.lines.lines[1].sees_arena = False
        for seed in (1, 2):
            number = worker.push(seed)
        pulled(worker.client, worker.table, number)
        far = set(group.servers[1]._spaces[JOB].state.holding.layout.blocks)  # type: ignore[union-attr]  it has blocks
        assert len(worker.codec.state()) == len(far) < len(blocks_of(worker.table))
        wait_until(lambda: all(len(set(each)) == 1 for each in copies(group).values()), "all copies are the same")
        assert all(len(each) == 2 for each in copies(group).values())


class Counting(Sparse):
    """Knows how often it has encoded each block."""

    def __init__(self, settings: Sparse.Settings | None = None) -> None:
        super().__init__(settings)
        self.counts: Counter[TensorKey] = Counter()

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        self.counts[key] += 1
        return super().encode(key, tensor)


CHANGES: dict[str, Callable[[Group], object]] = {
    "a server comes": lambda group: group.start(7),
    "a server goes": lambda group: group.servers[1].stop(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_push_that_is_staged_again_takes_its_residual_once(change: Callable[[Group], object]) -> None:
    """The map changes between its gradients and its commit."""
    codec = Counting(Sparse.Settings(above=2))
    with group_of(3, replicas=2) as group:
        worker = Worker(group, codec=codec)
        worker.push(1)
        push = worker.put(2)
        change(group)
        wait_until(lambda: worker.client._core.layout is not push.layout, "the worker hears of the new map")
        number = worker.commit(push)
        for seed in (1, 2):
            worker.expect(seed)
        worker.assert_values(number)
        assert len(codec.counts) == len(blocks_of(worker.table)) and set(codec.counts.values()) == {2}


def test_a_lossless_codec_encodes_values_too() -> None:
    with group_of(2) as group:
        worker = Worker(group, "packed")
        flat = {name: torch.ones(values.shape) for name, values in worker.expected.items()}
        number = worker.client.assign(flat, None, 0)
        before, worker.expected = received(worker.client), flat
        worker.assert_values(number)
        assert received(worker.client) - before < table_bytes(worker.table.tensors) / 4


def received(client: ParameterClient) -> int:
    """Bytes from servers so far."""
    return sum(line.connection.bytes_in for line in client._core.lines.lines.values() if line.connection is not None)


class Liar(Sparse):
    """Says what nobody can read."""

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        return memoryview(b"\x05" + bytes(super().encode(key, tensor))[1:])

    def decode(self, key: TensorKey, data: memoryview, tensor: torch.Tensor) -> None: ...


class Wordy(Liar):
    """Says more than it may."""

    def encode(self, key: TensorKey, tensor: torch.Tensor) -> memoryview:
        return memoryview(bytes(2 + tensor.nbytes))


@pytest.mark.parametrize(("codec", "words"), [(Liar, "are not a sparse tensor of"), (Wordy, "makes .* at most")])
def test_bytes_that_no_codec_makes_cost_the_worker_that_sends_them(codec: type[Codec], words: str) -> None:
    with group_of(1) as group:
        liar = Worker(group, "sparse", codec=codec())
        with pytest.raises(ServerRefused, match=f"push 2 of worker 0: .*{words}"):
            liar.push(1)
        honest = group.client(1)
        honest.define(liar.table)
        honest.enrol(EnrolTerms(2, (1,), "asynchronous", scaling="none"))
        push = honest.begin_push()
        assert isinstance(honest.commit(push, terms_of(liar.table)), Committed)


def test_a_server_without_the_codec_says_what_to_do() -> None:
    with group_of(1) as group:
        worker = Worker(group, "unheard-of", codec=Sparse())
        with pytest.raises(
            ServerRefused, match=r"no codec 'unheard-of'.*install the codec's package where the servers run"
        ):
            worker.push(1)
