"""What torch loads at the end of `import torch`: tells a script that starts its own workers what to do instead.

Under `shoal run` each worker already is one process of the job, so a script that calls `torch.multiprocessing.spawn`
would start n processes in each of n workers. Here those two functions are replaced in worker processes by one that
reports `ScriptStartsProcesses` to the job and leaves. DataLoader workers use `torch.multiprocessing.Process` and are
not touched. Outside a job this module does nothing, and it never makes `import torch` fail.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shoal.environment import WorkerEnvironment, worker_environment
from shoal.errors import Refused, ScriptStartsProcesses, ShoalError, UsageError

if TYPE_CHECKING:
    from types import FrameType

REPLACED = ("spawn", "start_processes")
REPORT_TIMEOUT = 5.0  # seconds to reach the coordinator, which is up long before a script gets here


def load() -> None:
    """The entry point in the group `torch.backends`."""
    try:
        worker = worker_environment()
    except UsageError:
        return  # `shoal.main` says so; a plain script has no use for these variables
    # The variables are inherited by whatever a worker starts; only the worker itself is held to the rule.
    if worker is None or worker.launcher != os.getppid():
        return
    from torch import multiprocessing  # noqa: PLC0415  only a worker pays for it

    for name in REPLACED:
        setattr(multiprocessing, name, _refusal(name, worker))


def _refusal(name: str, worker: WorkerEnvironment) -> object:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        text = _explain(name, sys._getframe(1))
        if getattr(sys.modules.get("shoal.cli.script"), "is_worker", False):
            raise ScriptStartsProcesses(text)  # `shoal.main` reports it
        try:
            _report(worker, text)
        except Refused:
            pass  # another worker was faster, and the job has ended with the same words
        except (ShoalError, OSError):
            sys.stderr.write(f"shoal: error: {text}\n")  # nobody else can say it any more
        raise SystemExit(ScriptStartsProcesses.exit_code)

    refuse.__name__ = name
    return refuse


def _explain(name: str, caller: FrameType) -> str:
    where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
    return (
        f"{where}: torch.multiprocessing.{name} starts processes, but `shoal run` has already started them; call the "
        'function directly, once, with rank = int(os.environ["RANK"]), or run the script with plain python'
    )


def _report(worker: WorkerEnvironment, text: str) -> None:
    from shoal.membership.client import CoordinatorClient  # noqa: PLC0415  not needed to import torch
    from shoal.wire.messages import PROTOCOL_VERSION, Join  # noqa: PLC0415

    join = Join(
        version=PROTOCOL_VERSION,
        worker=worker.worker,
        host=socket.gethostname(),
        process=os.getpid(),
        address=worker.coordinator,  # a stand-in: the job ends before a peer could call
    )
    token = Path(worker.token_file).read_text(encoding="utf-8").strip()
    client = CoordinatorClient.connect(worker.coordinator, token, join, timeout=REPORT_TIMEOUT)
    try:
        client.failed(step=0, error=ScriptStartsProcesses.__name__, text=text)
    finally:
        client.close()
