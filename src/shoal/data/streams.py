"""Sources that can only be read from their start: iterables and lists of files, and a tape to read them with.

Every worker reads the whole stream and takes its positions of it, so all must see the same samples in the same order:
random numbers drawn while reading come from (seed, epoch). Not here: dealing out and collating (`stream_feed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from shoal.data import texts
from shoal.data.loading import described
from shoal.data.order import key_of, sample_order
from shoal.data.seeding import PrivateGenerators
from shoal.errors import DataError, UsageError

FILES_KEY = 3  # see `order`: keys for different uses start from different numbers
STREAM_KEY = 4
SKIPPED_AT_ONCE = 1024  # samples in memory while skipping


@dataclass(frozen=True)
class Files:
    """A list of files as a data set: `read(path)` yields the samples of one. Shuffling moves whole files."""

    paths: Sequence[str | PathLike[str]]
    read: Callable[[Any], Iterable[Any]]

    def __post_init__(self) -> None:
        if isinstance(self.paths, (str, bytes, PathLike)):
            raise UsageError(texts.one_path(self.paths))
        if not callable(self.read):
            raise UsageError(texts.no_reader(self.read))
        object.__setattr__(self, "paths", tuple(self.paths))
        if not self.paths:
            raise DataError(texts.NO_PATHS)
        for path in self.paths:
            # Only `read` can find what a URL names.
            if "://" not in fspath(path) and not Path(path).exists():
                raise DataError(texts.file_missing(fspath(path)))


class SampleStream(ABC):
    """Samples in a fixed order per epoch."""

    source: Any  # the user's object
    is_one_shot: bool = False  # can be read only once
    order: str = "as they come"  # for people
    files: tuple[str, ...] = ()  # names of the files that hold the samples

    @abstractmethod
    def open(self, epoch: int) -> Iterator[Any]:
        """Iterate over the samples from the epoch's first one."""


class IterableStream(SampleStream):
    """Anything with `__iter__`; if samples are to be shuffled, it has to do that itself."""

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self.is_one_shot = isinstance(source, Iterator)

    def open(self, epoch: int) -> Iterator[Any]:  # noqa: ARG002
        return iter(self.source)


class FileStream(SampleStream):
    """The samples of one file after the other."""

    def __init__(self, files: Files, *, seed: int, shuffle: bool) -> None:
        self.source = files
        self.order = f"{len(files.paths)} files, {'shuffled' if shuffle else 'as they stand'}"
        self.files = tuple(fspath(path).replace("\\", "/").rpartition("/")[2] for path in files.paths)
        self._seed = seed
        self._shuffle = shuffle

    def open(self, epoch: int) -> Iterator[Any]:
        files: Files = self.source
        order = sample_order(
            seed=key_of(FILES_KEY, self._seed), epoch=epoch, size=len(files.paths), shuffle=self._shuffle
        )
        for index in order.between(0, len(files.paths)).tolist():
            path = files.paths[index]
            count = 0
            try:
                for sample in files.read(path):
                    yield sample
                    count += 1
            except Exception as error:
                raise DataError(texts.file_unreadable(fspath(path), count, described(error))) from error


class Tape:
    """A stream being read, with its latest window of samples, so that a step can be read again after a regrouping."""

    def __init__(self, stream: SampleStream, *, seed: int, epoch: int) -> None:
        self.epoch = epoch
        self.position = 0  # samples read so far
        self.has_ended = False
        self._has_failed = False
        self._stream = stream
        self._window: list[Any] = []  # the samples just before `position`
        self._generators = PrivateGenerators(key_of(STREAM_KEY, seed, epoch))
        self._samples: Iterator[Any] | None = None

    def reaches(self, start: int) -> bool:
        """Whether the samples from `start` on can be had without reading the stream anew."""
        return not self._has_failed and start >= self.position - len(self._window)

    def window(self, start: int, size: int) -> list[Any]:
        """The samples from `start` on, up to `size` of them: fewer at the stream's end."""
        assert self.reaches(start)
        self._window = self._window[len(self._window) - max(0, self.position - start) :]
        if self.position < start + size and not self.has_ended:
            with self._generators.in_use():
                while self.position < start and not self.has_ended:
                    self._read(min(SKIPPED_AT_ONCE, start - self.position))
                self._window += self._read(start + size - self.position)
        return self._window[:size]

    def _read(self, count: int) -> list[Any]:
        if self.has_ended:
            return []
        samples: list[Any] = []
        try:
            if self._samples is None:
                self._samples = self._stream.open(self.epoch)
            samples.extend(islice(self._samples, count))
        except DataError:
            self._has_failed = True
            raise
        except Exception as error:
            self._has_failed = True
            source, read = type(self._stream.source).__name__, self.position + len(samples)
            raise DataError(texts.stream_failed(source, read, self.epoch, described(error))) from error
        self.position += len(samples)
        self.has_ended = len(samples) < count
        return samples

    def close(self) -> None:
        """Close what was opened for this tape; a one-shot iterator is the user's own."""
        close = getattr(self._samples, "close", None)
        if close is not None and not self._stream.is_one_shot:
            close()
        self._samples = None
