"""The feed of a stream: every worker reads whole steps and keeps its part of them.

The size of a step is known only when its samples were read, so every worker reads all of them. Each of k loader
processes reads the whole stream and makes every k-th batch, which spreads collating but not reading. Not
here: opening and reading (`streams`).
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

import msgspec

from shoal.data import texts
from shoal.data.dealing import Dealing, check_enough, deal_step, nothing_left, whole_batches
from shoal.data.feed import Batch, Feed
from shoal.data.fingerprint import SAMPLES, UNKNOWN, Fingerprint, Hashes, hash_of, known_hashes
from shoal.data.loading import Assembler, Loader, LoadSettings, NoMore, collated, first_of
from shoal.data.order import key_of
from shoal.data.seeding import generators_kept, seed_generators
from shoal.data.streams import SampleStream, Tape
from shoal.errors import DataError, UsageError
from shoal.values import Cursor

COLLATE_KEY = 5  # see `order`: keys for different uses start from different numbers


class StreamWork(msgspec.Struct, frozen=True):
    cursor: Cursor  # where the iterator was entered
    dealing: Dealing
    number: int  # of the batch, counted from there


class StreamAssembler(Assembler):
    """Reads on to the step of a work and returns this worker's part of it, until the stream ends."""

    reads_in_sequence = True

    def __init__(self, stream: SampleStream, settings: LoadSettings, *, seed: int) -> None:
        self.source = stream.source
        self._stream = stream
        self._settings = settings
        self._seed = seed
        self._tape: Tape | None = None
        self._was_read = False  # whether a tape has read from the stream

    def load(self, work: StreamWork) -> Any:
        cursor, dealing = work.cursor, work.dealing
        step, micro_batch = divmod(work.number, dealing.accumulate)
        start = cursor.position + step * dealing.step_size
        tape = self._tape_at(cursor.epoch, start)
        samples = tape.window(start, dealing.step_size)
        if tape.has_ended:
            self._check_length(tape, cursor, dealing)
        used = whole_batches(dealing, len(samples)) if self._settings.drop_last else len(samples)
        if not used:
            return NoMore()
        part = deal_step(dealing, start=start, samples=used)[micro_batch]
        # A stand-in is two samples, not one, for the sake of BatchNorm.
        own = samples[part.start - start : part.stop - start] or [samples[0], samples[1 % len(samples)]]
        if not self._settings.collate_may_be_random:
            return collated(self._settings.collate, own), part
        with generators_kept():
            seed_generators(key_of(COLLATE_KEY, self._seed, cursor.epoch, part.start))
            return collated(self._settings.collate, own), part

    def hashes(self, cursor: Cursor) -> Hashes:
        """Positions and hashes of the samples at the cursor, which stay on the tape for the first step."""
        samples = self._tape_at(cursor.epoch, cursor.position).window(cursor.position, SAMPLES)
        return _hashed(samples, cursor.position)

    def close(self) -> None:
        if self._tape is not None:
            self._tape.close()
            self._tape = None

    def _tape_at(self, epoch: int, start: int) -> Tape:
        tape = self._tape
        if tape is None or tape.epoch != epoch or not tape.reaches(start):
            if self._stream.is_one_shot and self._was_read:
                raise DataError(texts.read_already(type(self.source).__name__, start, epoch))
            self.close()
            self._was_read = True
            self._tape = tape = Tape(self._stream, seed=self._seed, epoch=epoch)
        return tape

    def _check_length(self, tape: Tape, cursor: Cursor, dealing: Dealing) -> None:
        if tape.position == 0 and cursor.epoch > 0:
            raise DataError(texts.does_not_start_anew(type(self.source).__name__, cursor.epoch))
        if tape.position < cursor.position:
            raise DataError(texts.stream_shorter(cursor, type(self.source).__name__, tape.position))
        check_enough(tape.position, dealing)
        if self._settings.drop_last and not whole_batches(dealing, tape.position) and cursor.position == 0:
            raise nothing_left(tape.position, dealing)


class StreamHashAssembler(Assembler):
    """Reads the first samples of a stream, for their hashes, from an iterator of its own."""

    reads_in_sequence = True

    def __init__(self, stream: SampleStream, *, seed: int) -> None:
        self.source = stream.source
        self._stream = stream
        self._seed = seed

    def load(self, work: Cursor) -> Hashes:
        tape = Tape(self._stream, seed=self._seed, epoch=work.epoch)
        try:
            return _hashed(tape.window(work.position, SAMPLES), work.position)
        finally:
            tape.close()


def _hashed(samples: list[Any], start: int) -> Hashes:
    hashed = ((start + place, hash_of(sample)) for place, sample in enumerate(samples))
    return tuple((position, number) for position, number in hashed if number is not None)


class StreamFeed(Feed):
    is_stream = True

    def __init__(self, stream: SampleStream, settings: LoadSettings, *, batch_size: int, seed: int) -> None:
        if stream.is_one_shot and settings.processes > 0:
            raise UsageError(texts.read_only_once(type(stream.source).__name__, settings.processes))
        self.samples = _announced_length(stream.source)
        self.batch_size = batch_size
        self.order = f"{stream.order}, with seed {seed}"  # the seed of random numbers drawn while reading
        self.drop_last = settings.drop_last
        self.files = stream.files
        self.is_one_shot = stream.is_one_shot
        self._settings = settings
        self._seed = seed
        self._hasher = StreamHashAssembler(stream, seed=seed)
        self._assembler = StreamAssembler(stream, settings, seed=seed)
        self._loader = Loader(self._assembler, settings)

    def batches(self, cursor: Cursor, dealing: Dealing, stop: int | None = None) -> Generator[Batch, None, None]:
        if stop is not None:
            raise UsageError(texts.ENTERED_IN_THE_MIDDLE)
        works = (StreamWork(cursor=cursor, dealing=dealing, number=number) for number in count())
        loaded = self._loader.run(works)
        try:
            for data, part in loaded:
                yield Batch.of(part, data, epoch=cursor.epoch)
        finally:
            loaded.close()

    def fingerprint(self, cursor: Cursor, *, anew: bool = False) -> Fingerprint:
        length = UNKNOWN if self.samples is None else self.samples
        return Fingerprint(length, self._hashes(cursor, anew=anew))

    def _hashes(self, cursor: Cursor, *, anew: bool) -> Hashes:
        if not self._settings.processes:
            return self._hasher.load(cursor) if anew and not self.is_one_shot else self._assembler.hashes(cursor)
        if cursor != Cursor():  # a process would have to read all samples before
            return ()
        way = (self._seed,)
        hashes = None if anew else known_hashes.get(self._hasher.source, way)
        if hashes is None:
            hashes = first_of(self._hasher, cursor, self._settings) or ()
            known_hashes.put(self._hasher.source, way, hashes)
        return hashes

    def close(self) -> None:
        self._loader.close()
        self._assembler.close()


def _announced_length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, NotImplementedError):  # many streams do not know their length, and raise when asked
        return None
