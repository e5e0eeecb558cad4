"""Agents in executors of Spark: one Spark job of a single task for each worker slot, which ends with its agent.

Each slot has a Spark job of its own, because a Spark job fails as a whole. If an executor is lost, Spark restarts its
tasks elsewhere; if a job fails nevertheless, the provider submits it again. Tasks that find no free core wait in
Spark's queue, so cores that come later are used. Not here: the application (`own_application`), what a task does
(`spark_task`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable

from pyspark import SparkContext

from shoal.engines.nodes.provider import NodeGone, Provider, WayIn
from shoal.engines.retries import Retries
from shoal.engines.spark.spark_failures import gone_with, gone_without_agent
from shoal.engines.spark.spark_task import AgentTask, TaskEnd

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before the job of a slot is submitted again
LEAVE_SECONDS = 2.0  # that tasks may take to end after their agents
END_SECONDS = 10.0  # that Spark may take to end jobs that are cancelled
THREAD = "shoal-spark-job"
SLOT = "slot"  # the only name in the retries of a slot


class SparkProvider(Provider):
    def __init__(self, context: SparkContext, slots: int, close_context: Callable[[], None]) -> None:
        """`close_context` is called at the end; it must do nothing if the application is the user's."""
        self._context = context
        self._slots = slots
        self._close_context = close_context
        self._group = f"shoal-{uuid.uuid4().hex}"  # of Spark's jobs
        self._gone: queue.SimpleQueue[NodeGone] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        """No names: which executors get the tasks is up to Spark."""
        for _ in range(self._slots):
            # A daemon: it waits for Spark, which nobody can interrupt.
            thread = threading.Thread(target=self._keep_slot, args=(way_in,), name=THREAD, daemon=True)
            self._threads.append(thread)
            thread.start()
        return ()

    def fileno(self) -> int:
        return self._bell

    def poll(self) -> tuple[NodeGone, ...]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        found = []
        while not self._gone.empty():
            found.append(self._gone.get())
        return tuple(found)

    def close(self) -> None:
        if self._ending.is_set():
            return
        self._ending.set()
        if not self._has_ended(LEAVE_SECONDS):  # the agents were told to leave, but some tasks wait for a core
            with contextlib.suppress(Exception):  # whatever py4j raises where Spark is gone
                self._context.cancelJobGroup(self._group)
        self._has_ended(END_SECONDS)
        self._close_context()
        if self._has_ended(0.0):  # else a thread may still ring
            os.close(self._bell)

    def _has_ended(self, seconds: float) -> bool:
        """Whether all threads end in that time."""
        limit = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _keep_slot(self, way_in: WayIn) -> None:
        """The thread of a slot: have its task run, again and again."""
        retries = Retries(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._ending.is_set():
            began = time.monotonic()
            gone = self._run_task(way_in)
            if gone is not None and not self._ending.is_set():
                self._gone.put(gone)
                os.eventfd_write(self._bell, 1)
            ended = time.monotonic()
            self._ending.wait(retries.failed(SLOT, ended, lasted=ended - began))

    def _run_task(self, way_in: WayIn) -> NodeGone | None:
        """One Spark job, up to its end."""
        try:
            self._context.setJobGroup(self._group, "a worker of Shoal", interruptOnCancel=True)
            [end] = self._context.parallelize([0], 1).mapPartitions(AgentTask(way_in)).collect()
        except Exception as error:  # Spark's, py4j's, or of a socket that closed
            return gone_without_agent(str(error))
        return gone_with(TaskEnd(*end))
