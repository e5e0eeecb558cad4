"""Fingerprints of data: equal for equal data, different for data split by rank, silent about what is not steady."""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from shoal.data import fingerprint
from shoal.data.fingerprint import SAMPLES, Fingerprint, KnownHashes, first_difference, hash_of, read_hashes, spread
from shoal.data.sources import FeedOptions, feed_for
from shoal.data.streams import Files
from shoal.values import Cursor
from support.data import equal_dealings

# Samples

numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=8), st.binary(max_size=8))
arrays = st.lists(st.floats(width=32), max_size=6).map(lambda values: np.array(values, dtype=np.float32))
parts = st.one_of(numbers, arrays, arrays.map(torch.from_numpy))
samples = st.recursive(
    parts,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(sample=samples)
def test_a_sample_has_one_hash(sample: Any) -> None:
    assert hash_of(sample) is not None
    assert hash_of(sample) == hash_of(sample)
    assert hash_of([sample]) != hash_of([sample, sample]) != hash_of([[sample], sample])


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=6), place=st.integers(0, 5), kind=st.sampled_from("lant")
)
def test_one_changed_number_changes_the_hash(values: list[int], place: int, kind: str) -> None:
    other = list(values)
    other[place % len(values)] += 1
    make: Any = {"l": list, "a": np.array, "n": tuple, "t": torch.tensor}[kind]
    assert hash_of(make(values)) != hash_of(make(other))


def test_kinds_and_shapes_count() -> None:
    alike = [1, 1.0, True, "1", b"1", [1], {"1": 1}, torch.tensor(1), torch.tensor([1]), np.float32(1), None, ()]
    alike += [torch.tensor(1.0), torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(6, dtype=torch.bfloat16), "", b""]
    hashes = [hash_of(value) for value in alike]
    assert len(set(hashes)) == len(alike)


def test_the_order_of_keys_and_the_layout_of_a_tensor_do_not_count() -> None:
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})
    tensor = torch.arange(6.0).reshape(2, 3)
    assert hash_of(tensor.t()) == hash_of(tensor.t().contiguous())


@dataclass
class Pair:
    image: torch.Tensor
    label: int


def test_dataclasses_are_hashed_by_their_fields() -> None:
    assert hash_of(Pair(torch.ones(2), 3)) == hash_of(Pair(torch.ones(2), 3))
    assert hash_of(Pair(torch.ones(2), 3)) != hash_of(Pair(torch.ones(2), 4))


def test_what_cannot_be_hashed_has_no_hash() -> None:
    endless: list[Any] = []
    endless.append(endless)
    unknown = (object(), {1, 2}, endless, np.array([object()]), torch.eye(2).to_sparse(), {"a": object()})
    assert [hash_of(value) for value in unknown] == [None] * len(unknown)


# Comparing

fingerprints = st.builds(
    Fingerprint,
    length=st.integers(-1, 5),
    hashes=st.dictionaries(st.integers(0, 5), st.integers(-(2**63), 2**63 - 1), max_size=SAMPLES).map(
        lambda pairs: tuple(pairs.items())
    ),
)


@given(one=fingerprints)
def test_a_fingerprint_travels_as_numbers(one: Fingerprint) -> None:
    sent = one.as_numbers()
    assert len(sent) == len(Fingerprint(0).as_numbers())
    assert Fingerprint.from_numbers(torch.tensor(sent, dtype=torch.int64).tolist()) == one


@given(found=st.lists(fingerprints, min_size=1, max_size=4))
def test_a_difference_is_one_that_all_could_have_seen(found: list[Fingerprint]) -> None:
    difference = first_difference(found)
    known = [dict(each.hashes) for each in found]
    common = set.intersection(*(set(each) for each in known))
    differ = {index for index in common if len({each[index] for each in known}) > 1}
    if len({each.length for each in found}) > 1:
        assert difference is not None
        assert difference.index is None
        assert difference.lengths == tuple(found[rank].length for rank in difference.ranks)
    elif differ:
        assert difference is not None
        assert difference.index in differ
        one, other = difference.ranks
        assert known[one][difference.index] != known[other][difference.index]
    else:
        assert difference is None


@given(one=fingerprints, later=fingerprints)
def test_what_a_later_reading_does_not_confirm_is_left_out(one: Fingerprint, later: Fingerprint) -> None:
    assert set(one.steady(later).hashes) == set(one.hashes) & set(later.hashes)
    assert one.steady(one) == one


@given(length=st.integers(0, 10_000))
def test_the_compared_samples_are_spread_over_the_data(length: int) -> None:
    indices = spread(length)
    assert len(indices) == len(set(indices)) == min(length, SAMPLES)
    if length:
        assert (indices[0], indices[-1]) == (0, length - 1)


# Reading


class Random(Dataset[torch.Tensor]):
    """Augmented with the global generators, which Shoal seeds."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(3) + random.random() + np.random.rand()


class Unsteady(Dataset[Any]):
    """Every third sample is what others are not: different each time, of no known kind, or an error."""

    def __init__(self) -> None:
        self.counter = itertools.count()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            return next(self.counter)
        if index == 1:
            return object()
        if index == 2:
            raise ValueError("broken")
        return "steady"


def test_augmentation_with_global_generators_is_the_same_everywhere_and_leaves_them_alone() -> None:
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    first = read_hashes(Random(), seed=7)
    assert len(first) == SAMPLES
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(4)
    assert read_hashes(Random(), seed=7) == first
    assert read_hashes(Random(), seed=8) != first


def test_only_steady_samples_have_hashes() -> None:
    assert [index for index, _ in read_hashes(Unsteady(), seed=0)] == [3]


def test_slow_samples_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(step=10.0)
    monkeypatch.setattr(fingerprint.time, "monotonic", lambda: next(times))
    assert read_hashes(range(100), seed=0) == ()


def feed(data: Any, **options: Any) -> Any:
    return feed_for(data, FeedOptions(batch_size=2, **options))


def test_data_split_by_rank_differ_and_the_whole_data_do_not() -> None:
    whole = TensorDataset(torch.arange(20.0))
    split = [feed(Subset(whole, range(rank, 20, 2))).fingerprint(Cursor()) for rank in (0, 1)]
    assert first_difference(split) is not None
    same = [feed(TensorDataset(torch.arange(20.0))).fingerprint(Cursor()) for _ in range(2)]
    assert first_difference(same) is None


class Counted(Dataset[int]):
    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


def test_samples_are_read_once_per_data_set_and_again_when_asked() -> None:
    data = Counted()
    first = feed(data).fingerprint(Cursor())
    assert data.reads == 2 * SAMPLES
    assert feed(DataLoader(data, batch_size=2)).fingerprint(Cursor(epoch=3)) == first
    assert data.reads == 2 * SAMPLES
    assert feed(data).fingerprint(Cursor(), anew=True) == first
    assert data.reads == 4 * SAMPLES


def test_hashes_are_forgotten_with_their_data_set() -> None:
    known, data = KnownHashes(), Counted()
    known.put(data, (10,), ((0, 1),))
    assert known.get(data, (10,)) == ((0, 1),)
    assert known.get(data, (11,)) is None
    del data
    gc.collect()
    assert not known._found
    known.put([1, 2], (2,), ((0, 1),))  # cannot be watched: never kept
    assert not known._found


class Opening(Dataset[int]):
    """Opens its file with its first sample, as data sets for loader processes do."""

    def __init__(self) -> None:
        self.is_open = False

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.is_open = True
        return index


def test_with_loader_processes_the_worker_itself_reads_no_sample() -> None:
    data = Opening()
    assert feed(data, loaders=2).fingerprint(Cursor()).hashes == read_hashes(range(10), seed=0)
    assert not data.is_open


# Streams


class Stream(IterableDataset[int]):
    def __init__(self, start: int = 0, step: int = 1) -> None:
        self.start, self.step = start, step
        self.opened = 0

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        return iter(range(self.start, 40, self.step))


def test_a_stream_split_by_rank_differs_and_nothing_of_it_is_used_up() -> None:
    feeds = [feed(Stream(rank, 2)) for rank in (0, 1)]
    assert first_difference([each.fingerprint(Cursor()) for each in feeds]) is not None
    whole = Stream()
    own = feed(whole)
    assert len(own.fingerprint(Cursor()).hashes) == SAMPLES
    dealing = equal_dealings(1, 2)[0]
    batches = own.batches(Cursor(), dealing)
    assert [batch.data.tolist() for batch in batches][:2] == [[0, 1], [2, 3]]
    assert whole.opened == 1


def test_an_iterator_that_can_be_read_once_keeps_its_samples() -> None:
    own = feed(iter(range(6)))
    assert own.is_one_shot
    first = own.fingerprint(Cursor())
    assert own.fingerprint(Cursor(), anew=True) == first
    dealing = equal_dealings(1, 2)[0]
    assert [batch.data.tolist() for batch in own.batches(Cursor(), dealing)] == [[0, 1], [2, 3], [4, 5]]


def test_a_stream_that_draws_for_itself_is_not_steady() -> None:
    class Drawing(IterableDataset[float]):
        def __iter__(self) -> Iterator[float]:
            return (time.perf_counter_ns() for _ in range(10))

    own = feed(Drawing())
    first = own.fingerprint(Cursor())
    assert first.hashes
    assert not first.steady(own.fingerprint(Cursor(), anew=True)).hashes


def test_a_stream_in_loader_processes_is_read_in_one_of_its_own() -> None:
    whole = Stream()
    assert feed(whole, loaders=1).fingerprint(Cursor()).hashes == feed(Stream()).fingerprint(Cursor()).hashes
    assert whole.opened == 0
    assert feed(whole, loaders=1).fingerprint(Cursor(position=4)).hashes == ()


def test_files_are_named_without_their_folders(tmp_path: Any) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    files = Files([tmp_path / "a.txt", str(tmp_path / "b.txt")], lambda path: [str(path)])
    assert feed(files).files == ("a.txt", "b.txt")
