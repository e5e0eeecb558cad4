"""Workers that train models of their own: a script under `shoal run -n 2` that has nothing to do with its other copies.

torch calls a hook before each step of any optimizer. In a worker of several, a script that comes there without
`shoal.main` and without a process group trains a model that no other worker will ever hear of. So the job ends at that
step, and not after hours. A script that imports `shoal` may train something small on its way to `shoal.main`, and gets
some steps more; if it ends without `shoal.main` after all, the job fails then. Scripts that step no optimizer, and
never take notice of their rank, are warned when they end.

Whoever wants independent copies says so (`SHOAL_COPIES=1`). Libraries that connect workers by other means are left
alone. Not here: scripts that call `shoal.main` and train past it.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shoal.entry import texts
from shoal.environment import copies_are_meant, is_worker_itself, job_size

FIRST_STEPS = 100  # that a script which imports shoal may take before `shoal.main`
IMPORTS_SHOAL = re.compile(r"^[ \t]*(import|from)[ \t]+shoal\b", re.MULTILINE)
# Packages that let workers exchange gradients without a process group of torch's.
OTHER_WAYS = ("horovod", "byteps", "hivemind", "mpi4py", "bagua", "ray", "torchft")
OWN_SHARE = re.compile(r"\b(LOCAL_|GROUP_)?RANK\b|\bWORLD_SIZE\b")  # in a script that deals out work by itself
MOST_TEXT = 1 << 20  # bytes of a script that are read

is_over = False  # nothing is watched any more
_hooks: list[Callable[[], None]] = []  # how to take the hook in torch's optimizers away


def cease() -> None:
    """The script takes part in the job, by `shoal.main` or a process group, or was refused for another reason."""
    global is_over  # noqa: PLW0603  one script per process
    is_over = True
    while _hooks:
        _hooks.pop()()


def watch(worker: int, end_job: Callable[[str], NoReturn]) -> None:
    """In a worker, after torch was imported: tell `end_job` why, if the script trains a model of its own."""
    if job_size() < 2 or copies_are_meant():
        return
    from torch.optim import optimizer  # noqa: PLC0415  torch is being imported; it has imported this already

    steps = _Steps(worker, end_job)
    _hooks.append(optimizer.register_optimizer_step_pre_hook(steps.before_step).remove)
    atexit.register(steps.at_exit)


class _Steps:
    def __init__(self, worker: int, end_job: Callable[[str], NoReturn]) -> None:
        self._worker = worker
        self._end_job = end_job
        self._workers = job_size()
        self._text: str | None = None  # of the script, once it is needed
        self._first_path = _script_path()  # Python forgets it before the functions that run at exit
        self._taken = 0
        self._is_settled = False  # the script has connected its workers

    def before_step(self, *_arguments: object) -> None:
        if self._is_settled or self._looks_connected():
            return
        self._taken += 1
        if self._taken >= (FIRST_STEPS if IMPORTS_SHOAL.search(self._script()) else 1):
            self._is_settled = True
            self._end_job(texts.trains_alone(_script_frame(sys._getframe(1)), self._workers))

    def at_exit(self) -> None:
        if getattr(sys, "last_value", None) is not None or self._is_settled or self._looks_connected():
            return
        if self._taken:  # fewer steps than end the job at once, and `shoal.main` never came
            with contextlib.suppress(SystemExit):  # the interpreter is ending; the job's exit code says it
                self._end_job(texts.trains_alone(str(self._path), self._workers))
        elif self._worker == 0 and not OWN_SHARE.search(self._script()):  # one worker says it for all
            sys.stderr.write(f"shoal: warning: {texts.ran_as_copies(self._path.name, self._workers)}\n")

    def _looks_connected(self) -> bool:
        self._is_settled = (
            is_over
            or _says("torch.distributed", "is_initialized")
            or _says("torch.distributed.rpc.api", "_is_current_rpc_agent_set")
            or any(name in sys.modules for name in OTHER_WAYS)
            or not is_worker_itself()
        )
        return self._is_settled

    @property
    def _path(self) -> Path:
        """A process that waited as a spare knows its script later."""
        return _script_path() or self._first_path or Path("the script")

    def _script(self) -> str:
        if self._text is None:
            try:
                with self._path.open(encoding="utf-8", errors="replace") as file:
                    self._text = file.read(MOST_TEXT)
            except (OSError, ValueError):
                self._text = ""
        return self._text


def _says(module: str, question: str) -> bool:
    """What a function of torch's answers; False if torch was built without it."""
    asked = getattr(sys.modules.get(module), question, None)
    return asked is not None and bool(asked())


def _script_path() -> Path | None:
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if name is None else Path(name)


def _script_frame(frame: FrameType | None) -> str:
    """Where the step is taken, without torch's own frames."""
    torch_folder = f"{Path(sys.modules['torch'].__file__ or '').parent}/"
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(torch_folder):
        frame = frame.f_back
    return "the script" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
