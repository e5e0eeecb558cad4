"""Lists of files: each sample once, files shuffled per epoch, and files that are missing or broken are named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.data import texts
from shoal.data.loading import described
from shoal.data.sources import FeedOptions, feed_for
from shoal.data.streams import Files
from shoal.errors import DataError, UsageError
from support.data import as_list, batches_of, epoch_of, equal_dealings


def read_lines(path: Path) -> Iterator[str]:
    with path.open() as lines:
        for line in lines:
            yield line.strip()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Six files of 1, 2, ... 6 lines; a line says its file and number."""
    made = [tmp_path / f"part-{number}" for number in range(6)]
    for number, path in enumerate(made):
        path.write_text("".join(f"{number}.{line}\n" for line in range(number + 1)))
    return made


def files_options(**options: int | bool) -> FeedOptions:
    return FeedOptions(batch_size=2, collate=as_list, **options)  # type: ignore[arg-type]  options of several types


@pytest.mark.parametrize("loaders", [0, 2])
def test_every_sample_once_in_an_order_of_whole_files(paths: list[Path], loaders: int) -> None:
    feed = feed_for(Files(paths, read_lines), files_options(loaders=loaders, seed=4))
    lines = {line for path in paths for line in read_lines(path)}
    orders = []
    for epoch in (0, 1):
        samples = epoch_of(feed, equal_dealings(3, 2), epoch)
        assert set(samples) == lines
        assert len(samples) == len(lines)
        orders.append([sample for sample in samples if sample.endswith(".0")])
        in_files = [line for first in orders[-1] for line in read_lines(paths[int(first[0])])]
        assert samples == in_files
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_without_shuffle_files_come_as_given(paths: list[Path]) -> None:
    feed = feed_for(Files(paths[::-1], read_lines), files_options(shuffle=False))
    assert epoch_of(feed, equal_dealings(2, 2)) == [line for path in paths[::-1] for line in read_lines(path)]


def test_a_missing_file_is_named(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(texts.file_missing(str(tmp_path / "absent")))):
        Files([*paths, tmp_path / "absent"], read_lines)


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_file_that_vanishes_later_is_named(paths: list[Path], loaders: int) -> None:
    feed = feed_for(Files(paths, read_lines), files_options(shuffle=False, loaders=loaders))
    paths[3].unlink()
    why = described(FileNotFoundError(2, "No such file or directory", str(paths[3])))
    with pytest.raises(DataError, match=re.escape(texts.file_unreadable(str(paths[3]), 0, why))):
        batches_of(feed, equal_dealings(1, 2)[0])


def test_a_file_that_cannot_be_read_is_named_with_the_cause(paths: list[Path]) -> None:
    def picky(path: Path) -> Iterator[float]:
        yield from (1 / (6 - float(line)) if line.startswith("5") else float(line) for line in read_lines(path))
        if path == paths[2]:
            raise ValueError("bad checksum")

    feed = feed_for(Files(paths, picky), files_options(shuffle=False))
    said = texts.file_unreadable(str(paths[2]), 3, "ValueError: bad checksum")
    with pytest.raises(DataError, match=re.escape(said)) as got:
        batches_of(feed, equal_dealings(1, 2)[0])
    assert isinstance(got.value.__cause__, ValueError)


def test_urls_are_left_to_the_reader() -> None:
    feed = feed_for(Files(["store://bucket/a"], lambda path: iter([path, path])), files_options())
    assert epoch_of(feed, equal_dealings(1, 2)) == ["store://bucket/a"] * 2


def test_what_cannot_be_a_list_of_files_is_refused(paths: list[Path]) -> None:
    with pytest.raises(UsageError, match=re.escape(texts.one_path("a.txt"))):
        Files("a.txt", read_lines)
    with pytest.raises(UsageError, match=re.escape(texts.no_reader(None))):
        Files(paths, None)  # type: ignore[arg-type]  what a user might do
    with pytest.raises(DataError, match=texts.NO_PATHS):
        Files([], read_lines)
