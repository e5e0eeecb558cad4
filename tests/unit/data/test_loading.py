"""Loader processes: they obey the DataLoader's settings, end with their iterator, and their deaths have a name."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Semaphore
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from shoal.data import texts
from shoal.data.sources import FeedOptions, feed_for
from shoal.errors import DataError
from shoal.values import Cursor
from support.data import Augmented, Counting, as_list, batches_of, epoch_of, equal_dealings

ALONE = equal_dealings(1, 2)[0]


class Whereabouts(Dataset[tuple[int, int]]):
    """Each sample is its index and the process that loaded it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def processes_of(batch: Any) -> set[int]:
    return {process for _, process in batch.data}


def test_batches_come_from_as_many_processes_in_order() -> None:
    feed = feed_for(Whereabouts(), FeedOptions(batch_size=2, loaders=2, shuffle=False, collate=as_list))
    batches = batches_of(feed, ALONE)
    assert [batch.data[0][0] for batch in batches] == list(range(0, 40, 2))
    assert len(set.union(*map(processes_of, batches))) == 2
    assert os.getpid() not in set.union(*map(processes_of, batches))


def test_no_processes_without_loaders() -> None:
    feed = feed_for(Whereabouts(), FeedOptions(batch_size=2, collate=as_list))
    assert set.union(*map(processes_of, batches_of(feed, ALONE))) == {os.getpid()}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", [Whereabouts(), Counting(40)])
def test_closing_the_iterator_ends_its_processes(data: Any, persistent: bool) -> None:
    loader = DataLoader(data, batch_size=2, num_workers=2, collate_fn=as_list, persistent_workers=persistent)
    before = set(psutil.Process().children())
    batches = feed_for(loader, FeedOptions()).batches(Cursor(), ALONE)
    next(batches)
    assert len(set(psutil.Process().children()) - before) == 2
    batches.close()
    assert set(psutil.Process().children()) <= before


def test_a_failed_sample_ends_the_processes_too() -> None:
    feed = feed_for([1, 2, torch.zeros(3), 4], FeedOptions(batch_size=2, loaders=2))
    before = set(psutil.Process().children())
    with pytest.raises(DataError):
        batches_of(feed, ALONE)
    assert set(psutil.Process().children()) <= before


def test_persistent_processes_serve_every_epoch_until_the_feed_is_closed() -> None:
    loader = DataLoader(Whereabouts(), batch_size=2, num_workers=2, collate_fn=as_list, persistent_workers=True)
    feed = feed_for(loader, FeedOptions())
    epochs = [epoch_of(feed, equal_dealings(1, 2), epoch) for epoch in (0, 1)]
    used = [{process for _, process in samples} for samples in epochs]
    assert used[0] == used[1]
    assert [index for index, _ in epochs[0]] == [index for index, _ in epochs[1]] == list(range(40))
    feed.close()
    assert not any(psutil.pid_exists(process) for process in used[0])


def test_persistent_processes_read_a_stream_anew_every_epoch() -> None:
    loader = DataLoader(Counting(11), batch_size=2, num_workers=2, collate_fn=as_list, persistent_workers=True)
    feed = feed_for(loader, FeedOptions())
    before = set(psutil.Process().children())
    assert epoch_of(feed, equal_dealings(1, 2)) == list(range(11))
    kept = set(psutil.Process().children()) - before
    assert len(kept) == 2
    assert epoch_of(feed, equal_dealings(1, 2), 1) == list(range(11))
    assert set(psutil.Process().children()) - before == kept
    feed.close()
    assert set(psutil.Process().children()) <= before


class Prepared(Dataset[tuple[int, int]]):
    """Set up per process by `prepare`, in the way torch documents."""

    prepared_by = -1

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        assert info is not None
        return self.prepared_by, info.id


def prepare(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.prepared_by = number  # type: ignore[attr-defined]  a field that only this test knows


def test_worker_init_fn_finds_the_data_set_of_its_process() -> None:
    loader = DataLoader(Prepared(), batch_size=2, num_workers=2, worker_init_fn=prepare, collate_fn=as_list)
    batches = batches_of(feed_for(loader, FeedOptions()), ALONE)
    assert [batch.data for batch in batches] == [[(0, 0)] * 2, [(1, 1)] * 2] * 2


def test_a_worker_init_fn_that_raises_is_told() -> None:
    def broken(number: int) -> None:
        raise ValueError("no licence")

    loader = DataLoader(Whereabouts(), batch_size=2, num_workers=1, worker_init_fn=broken)
    with pytest.raises(
        DataError, match=re.escape(texts.loading_failed(1, "WHY")).replace("WHY", "ValueError.*")
    ) as caught:
        batches_of(feed_for(loader, FeedOptions()), ALONE)
    assert "no licence" in str(caught.value.__cause__)


class Announcing(Dataset[int]):
    """Says through a semaphore when a sample is loaded."""

    def __init__(self, loaded: Semaphore) -> None:
        self.loaded = loaded

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.loaded.release()
        return index


def test_prefetch_factor_sets_how_far_ahead_is_loaded() -> None:
    loaded = multiprocessing.Semaphore(0)
    loader = DataLoader(Announcing(loaded), batch_size=1, num_workers=1, prefetch_factor=6)
    batches = feed_for(loader, FeedOptions()).batches(Cursor(), equal_dealings(1, 1)[0])
    next(batches)
    # The one in hand and six ahead; torch's own default would be two ahead.
    assert all(loaded.acquire(timeout=60) for _ in range(7))
    batches.close()


@pytest.mark.long
def test_another_start_method_is_honoured() -> None:
    loader = DataLoader(Augmented(5), batch_size=3, num_workers=1, multiprocessing_context="spawn", collate_fn=as_list)
    here = feed_for(Augmented(5), FeedOptions(batch_size=3, shuffle=False, collate=as_list))
    assert epoch_of(feed_for(loader, FeedOptions()), equal_dealings(1, 3)) == epoch_of(here, equal_dealings(1, 3))


def test_pinned_memory_is_asked_for() -> None:
    loader = DataLoader(Augmented(4), batch_size=2, pin_memory=True)
    feed = feed_for(loader, FeedOptions())
    if torch.accelerator.is_available():
        assert all(batch.data[0].is_pinned() for batch in batches_of(feed, ALONE))
    else:
        with pytest.warns(UserWarning, match="pin_memory.* no accelerator"):
            batches_of(feed, ALONE)


class Dangerous(Dataset[int]):
    """Sample 3 does something to its own process."""

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 3:
            if self.deed == "hangs":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL if self.deed == "is killed" else signal.SIGINT)
        return index


@pytest.mark.parametrize(("deed", "told"), [("is killed", "Killed"), ("hangs", "timed out after 1")])
def test_a_lost_loader_process_is_a_one_line_error(deed: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Dangerous(deed), batch_size=2, num_workers=1, timeout=1 if deed == "hangs" else 0)
    before = set(psutil.Process().children())
    with (
        tempfile.TemporaryDirectory() as sockets,  # which a killed process cannot remove
        monkeypatch.context() as patch,
        pytest.raises(
            DataError, match=re.escape(texts.loading_failed(1, "WHY")).replace("WHY", "RuntimeError.*")
        ) as caught,
    ):
        patch.setattr(tempfile, "tempdir", sockets)
        batches_of(feed_for(loader, FeedOptions()), ALONE)
    assert told in str(caught.value) or "exited unexpectedly" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(psutil.Process().children()) <= before


def test_ctrl_c_is_left_to_the_worker() -> None:
    """A terminal sends it to loader processes too; a clean stop needs them for one more batch."""
    feed = feed_for(Dangerous("is interrupted"), FeedOptions(batch_size=2, loaders=1, shuffle=False))
    assert [batch.data.tolist() for batch in batches_of(feed, ALONE)] == [[0, 1], [2, 3]]


PARENT = """
import os, time
from shoal.data.sources import FeedOptions, feed_for
from shoal.values import Cursor
from support.data import equal_dealings

class Busy:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        os.write(1, f"{os.getpid()}\\n".encode())  # at once: unbuffered, print writes the end of the line by itself
        time.sleep(600)

next(feed_for(Busy(), FeedOptions(batch_size=1, loaders=2)).batches(Cursor(), equal_dealings(1, 1)[0]))
"""


def test_loader_processes_die_with_a_killed_worker() -> None:
    """They hold copies of its sockets: peers would wait for a dead worker as long as its loaders live."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout is not None
        loaders = [psutil.Process(int(worker.stdout.readline())) for _ in range(2)]
        worker.kill()
        assert psutil.wait_procs(loaders, timeout=60)[1] == []
