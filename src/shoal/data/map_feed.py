"""The feed of a source with random access: anything with `__getitem__` and `__len__`.

Entering an epoch anywhere costs nothing: the positions of a part are turned into indices by the keyed order. Not here:
running works (`loading`; `pipeline` for one stretch after the other), and which objects are accepted (`sources`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from shoal.data import texts
from shoal.data.dealing import BatchPart, Dealing, check_enough, deal, nothing_left, whole_batches
from shoal.data.feed import Batch, Feed
from shoal.data.fingerprint import Fingerprint, HashAssembler, Hashes, known_hashes, read_hashes
from shoal.data.loading import Assembler, Loader, LoadSettings, collated, described, first_of
from shoal.data.order import Indices, SampleOrder, sample_order, sample_seeds
from shoal.data.pipeline import Pipeline, Planned
from shoal.data.seeding import generators_kept, may_be_random, seed_generators
from shoal.errors import DataError
from shoal.values import Cursor

ORDERED_AT_ONCE = 4096  # samples, about: a call costs as much as a thousand samples


class MapWork(msgspec.Struct, frozen=True):
    epoch: int
    indices: Any  # numpy int64


class MapAssembler(Assembler):
    """Loads samples by index, each with random generators of its own."""

    reads_in_sequence = False

    def __init__(self, source: Any, settings: LoadSettings, *, seed: int) -> None:
        self.source = source
        self._seed = seed
        self._collate = settings.collate
        self._seeds_samples = may_be_random(source)
        self._seeds_batches = settings.collate_may_be_random
        # One indexing call gives what torch's collating makes of single rows, about 20 times faster.
        self._table = None if self._seeds_batches else table_of(source)

    def load(self, work: MapWork) -> Any:
        if self._table is not None:
            return self._table.rows(work.indices)
        if not self._seeds_samples and not self._seeds_batches:
            return collated(self._collate, [self._sample(index) for index in work.indices.tolist()])
        seeds = sample_seeds(seed=self._seed, epoch=work.epoch, indices=work.indices)
        with generators_kept():
            seed_generators(seeds[0])
            samples = []
            for index, seed in zip(work.indices.tolist(), seeds, strict=True):
                if self._seeds_samples:
                    seed_generators(seed)
                samples.append(self._sample(index))
            return collated(self._collate, samples)

    def _sample(self, index: int) -> Any:
        try:
            return self.source[index]
        except Exception as error:
            raise DataError(texts.sample_failed(index, type(self.source).__name__, described(error))) from error


class Table:
    """Tensors whose rows are samples, perhaps only some of the rows."""

    def __init__(self, tensors: tuple[torch.Tensor, ...], chosen: torch.Tensor | None = None) -> None:
        self.tensors = tensors
        self.chosen = chosen  # row of each index; None: all rows

    def rows(self, indices: Indices) -> list[torch.Tensor]:
        rows = torch.from_numpy(indices)
        rows = rows if self.chosen is None else self.chosen[rows]
        return [tensor[rows] for tensor in self.tensors]


def table_of(source: Any) -> Table | None:
    """The table behind a TensorDataset or a Subset of one (random_split makes those); None for anything else."""
    if type(source) is TensorDataset:
        return Table(source.tensors)
    if type(source) is Subset and (inner := table_of(source.dataset)) is not None:
        chosen = torch.as_tensor(list(source.indices), dtype=torch.int64)
        return Table(inner.tensors, chosen if inner.chosen is None else inner.chosen[chosen])
    return None


class MapFeed(Feed):
    def __init__(self, source: Any, settings: LoadSettings, *, batch_size: int, seed: int, shuffle: bool) -> None:
        self.samples: int = len(source)
        self.batch_size = batch_size
        self.order = f"shuffled with seed {seed}" if shuffle else "as they stand"
        self.drop_last = settings.drop_last
        self._source = source
        self._settings = settings
        self._seed = seed
        self._shuffle = shuffle
        assembler = MapAssembler(source, settings, seed=seed)
        self._loader = Loader(assembler, settings)
        self._pipeline = Pipeline(assembler, settings)
        self.loads_ahead = self._pipeline.depth

    def batches(self, cursor: Cursor, dealing: Dealing, stop: int | None = None) -> Generator[Batch, None, None]:
        check_enough(self.samples, dealing)
        if stop is not None:
            return self._stretch(cursor, dealing, stop)
        self._pipeline.close()
        if cursor.position > self.samples:
            raise DataError(texts.data_set_shorter(cursor, self.samples))
        left = self.samples - cursor.position
        if self.drop_last:
            left = whole_batches(dealing, left)
            if not left and cursor.position == 0:
                raise nothing_left(self.samples, dealing)
        return self._batches(cursor, dealing, cursor.position + left)

    def foresee(self, cursor: Cursor, dealing: Dealing, stop: int) -> None:
        self._pipeline.foresee(self._planned(cursor, list(deal(dealing, start=cursor.position, stop=stop))))

    def fingerprint(self, cursor: Cursor, *, anew: bool = False) -> Fingerprint:  # noqa: ARG002  the same everywhere
        way = (self.samples, self._seed)
        hashes = None if anew else known_hashes.get(self._source, way)
        if hashes is None:
            hashes = self._read_hashes()
            known_hashes.put(self._source, way, hashes)
        return Fingerprint(self.samples, hashes)

    def _read_hashes(self) -> Hashes:
        if not self._settings.processes or not may_be_random(self._source):
            return read_hashes(self._source, seed=self._seed)
        return first_of(HashAssembler(self._source, seed=self._seed), None, self._settings) or ()

    def _stretch(self, cursor: Cursor, dealing: Dealing, stop: int) -> Generator[Batch, None, None]:
        parts = list(deal(dealing, start=cursor.position, stop=stop))
        self._pipeline.expect(self._planned(cursor, parts))
        for part in parts:
            yield Batch.of(part, self._pipeline.take(), epoch=cursor.epoch)

    def _planned(self, cursor: Cursor, parts: list[BatchPart]) -> list[Planned]:
        works = self._works(cursor.epoch, iter(parts))
        return [
            Planned(key=(cursor.epoch, part.start, part.stop), work=work)
            for part, work in zip(parts, works, strict=True)
        ]

    def _batches(self, cursor: Cursor, dealing: Dealing, stop: int) -> Generator[Batch, None, None]:
        parts = deal(dealing, start=cursor.position, stop=stop)
        # Deal the parts twice, since the loader runs ahead of the batches; dealing costs next to nothing.
        loaded = self._loader.run(self._works(cursor.epoch, deal(dealing, start=cursor.position, stop=stop)))
        try:
            for part, data in zip(parts, loaded, strict=True):
                yield Batch.of(part, data, epoch=cursor.epoch)
        finally:
            loaded.close()

    def _works(self, epoch: int, parts: Iterator[BatchPart]) -> Iterator[MapWork]:
        order = sample_order(seed=self._seed, epoch=epoch, size=self.samples, shuffle=self._shuffle)
        while chunk := list(islice(parts, max(1, ORDERED_AT_ONCE // self.batch_size))):
            for indices in ordered(order, chunk):
                # A stand-in is two samples, not one, for the sake of BatchNorm.
                yield MapWork(
                    epoch=epoch, indices=indices if len(indices) else np.array([0, 1 % self.samples], dtype=np.int64)
                )

    def close(self) -> None:
        self._loader.close()
        self._pipeline.close()


def ordered(order: SampleOrder, parts: list[BatchPart]) -> list[Indices]:
    """The samples' indices, for each part."""
    positions = np.concatenate([np.arange(part.start, part.stop, dtype=np.int64) for part in parts])
    ends = np.cumsum([part.samples for part in parts])
    return np.split(order.indices(positions), ends[:-1])
