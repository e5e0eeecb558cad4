"""Runs torch's own distributed suite, from its wheel, over a backend: `python -m support.torch_suite shoal`.

The suite asks in many places whether the backend is gloo, and means "can it do what gloo does on a CPU". So the module
is loaded with a name of the backend that equals both. Everything else is as torch's own runner does it, except that
ranks are forked from a process that has imported torch instead of starting from nothing: 0.3 s instead of 4 s a test.
Ranks of a test are processes of their own; several tests run at a time.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

SUITE = "torch.testing._internal.distributed.distributed_test"


class LikeGloo(str):
    """The name of a backend for which all questions after gloo are answered with yes."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


class _Loader(importlib.machinery.SourceFileLoader):
    """The suite's module with one line of it replaced: where it learns which backend it tests."""

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        line = b'BACKEND = os.environ["BACKEND"]'
        if not path.endswith(".py"):
            raise OSError("the compiled form is of the unchanged source")
        assert data.count(line) == 1, f"{path} has changed: it does not read the backend's name as before"
        return data.replace(line, b'BACKEND = __import__("support.torch_suite").torch_suite.backend_name()')


def backend_name() -> str:
    name = os.environ["BACKEND"]
    return name if name == "gloo" else LikeGloo(name)


def load_suite() -> ModuleType:
    from torch.testing._internal.common_distributed import DistTestCases

    DistTestCases.backend_feature["plugin"].add(os.environ["BACKEND"])
    found = importlib.util.find_spec(SUITE)
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location(SUITE, found.origin, loader=_Loader(SUITE, found.origin))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module
    spec.loader.exec_module(module)
    return module


def make_cases(suite: ModuleType) -> type[unittest.TestCase]:
    class TestShoal(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    return TestShoal


def run_one(cases: type[unittest.TestCase], name: str) -> dict[str, Any]:
    result = unittest.TestResult()
    started = time.monotonic()
    cases(name).run(result)
    outcome, text = "passed", ""
    if result.skipped:
        outcome, text = "skipped", result.skipped[0][1]
    if result.failures or result.errors:
        outcome, text = "failed", "\n".join(trace for _, trace in (*result.failures, *result.errors))
    return {"name": name, "outcome": outcome, "seconds": round(time.monotonic() - started, 2), "text": text}


def serve(cases: type[unittest.TestCase], names: Any, results: Any, folder: str) -> None:
    """One test after the other, until there are none. Nobody else uses this process's temporary folder."""
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    while (name := names.get()) is not None:
        log = Path(tempfile.tempdir) / f"{name}.log"
        with log.open("wb") as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            found = run_one(cases, name)
        if found["outcome"] == "failed":
            found["text"] += log.read_text(errors="replace")[-20_000:]
        results.put(found)


def run_suite(pattern: str, jobs: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["INIT_METHOD"] = f"file://{folder}/meeting"  # one of the tests makes its group itself
        cases = make_cases(load_suite())
        names = [name for name in sorted(dir(cases)) if name.startswith("test_") and re.search(pattern, name)]
        queue, results = context.Queue(), context.Queue()
        for name in (*names, *[None] * jobs):
            queue.put(name)
        servers = [context.Process(target=serve, args=(cases, queue, results, folder)) for _ in range(jobs)]
        for server in servers:
            server.start()
        found = []
        for _ in names:
            found.append(results.get())
            one = found[-1]
            sys.stdout.write(f"{len(found)}/{len(names)} {one['outcome']} {one['name']} {one['seconds']} s\n")
        for server in servers:
            server.join()
    return sorted(found, key=lambda one: str(one["name"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend")
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.backend == "shoal":
        import shoal.collectives.torch_backend.process_group  # noqa: F401  once, and not in every rank of every test
    os.environ.update(BACKEND=given.backend, WORLD_SIZE=str(given.world_size), DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="60")
    found = run_suite(given.only, given.jobs)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
