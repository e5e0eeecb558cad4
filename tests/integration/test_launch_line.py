"""The launcher's line to a real coordinator: what is told again after a break is not handed out again."""

from __future__ import annotations

import queue
import select
import socket
import threading
import time
from pathlib import Path

from shoal.errors import AddressUnavailable, ShoalError
from shoal.launching.coordinator_line import Broke, Connected, CoordinatorLine, News, NoAnswer
from shoal.membership.watcher import WatcherClient
from shoal.wire.messages import Happened
from support.membership_job import Job


def until(line: CoordinatorLine, kind: type[News]) -> list[News]:
    """All news up to the first of this kind."""
    news: list[News] = []
    limit = time.monotonic() + 60
    while not any(isinstance(one, kind) for one in news):
        assert select.select([line], [], [], limit - time.monotonic())[0], news
        news += line.receive()
    return news


def happened(news: list[News]) -> list[str]:
    return [type(one.event).__name__ for one in news if isinstance(one, Happened)]


def test_events_are_handed_out_once_however_often_the_line_breaks(tmp_path: Path) -> None:
    with Job(tmp_path, workers=2) as job:
        line = CoordinatorLine(lambda: WatcherClient.connect(job.address, job.token, timeout=30.0, is_launcher=False))
        assert not line.is_up
        line.open()
        line.open()  # nothing more happens
        news = until(line, Happened)
        assert isinstance(news[0], Connected)
        assert "JobStarted" in happened(news)
        line.drop()
        line.send(lambda client: client.enlist())  # nobody is there to be told
        job.join(0)
        line.open()
        again = until(line, Happened)
        assert isinstance(again[0], Connected)
        assert set(happened(again)) == {"WorkerJoined"}
        line.close()


def test_nobody_at_the_other_end_is_news_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    def connect() -> WatcherClient:
        raise AddressUnavailable(f"nobody listens at {port}")

    line = CoordinatorLine(connect)
    line.open()
    [news] = until(line, NoAnswer)
    assert isinstance(news, NoAnswer)
    assert str(port) in news.reason
    line.close()


def test_a_coordinator_that_ends_breaks_the_line(tmp_path: Path) -> None:
    with Job(tmp_path, workers=1) as job:
        line = CoordinatorLine(lambda: WatcherClient.connect(job.address, job.token, timeout=30.0, is_launcher=False))
        line.open()
        until(line, Connected)
        job.restart_coordinator()
        assert isinstance(until(line, Broke)[-1], Broke)
        assert not line.is_up
        line.close()


def test_a_line_that_is_closed_while_it_connects_leaves_nothing_open(tmp_path: Path) -> None:
    with Job(tmp_path, workers=1) as job:
        go = threading.Event()
        made: list[WatcherClient] = []

        def connect() -> WatcherClient:
            go.wait()
            made.append(WatcherClient.connect(job.address, job.token, timeout=30.0, is_launcher=False))
            return made[0]

        line = CoordinatorLine(connect)
        line.open()
        line.close()
        go.set()
        limit = time.monotonic() + 60
        while (not made or made[0].fileno() != -1) and time.monotonic() < limit:
            time.sleep(0.01)
        assert made[0].fileno() == -1


def test_a_line_that_is_closed_when_it_has_just_connected_leaves_nothing_open(tmp_path: Path) -> None:
    """Between the try's end and its being handed over, which `put` is."""
    with Job(tmp_path, workers=1) as job:
        made: list[WatcherClient] = []

        def connect() -> WatcherClient:
            made.append(WatcherClient.connect(job.address, job.token, timeout=30.0, is_launcher=False))
            return made[0]

        class Answers(queue.SimpleQueue[WatcherClient | ShoalError]):
            def put(self, item: WatcherClient | ShoalError, block: bool = True, timeout: float | None = None) -> None:
                line.close()
                super().put(item, block, timeout)

        line = CoordinatorLine(connect)
        line._answers = Answers()
        line._try()
        assert made[0].fileno() == -1
