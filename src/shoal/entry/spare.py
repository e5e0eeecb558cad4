"""A spare process: has torch imported, waits, and becomes a worker when it is told which.

Started as `python -m shoal.entry.spare` through the job's engine. It says `READY` once; one line of JSON (`Order`) on
its standard input then makes it worker so-and-so, and the script runs as `__main__` in this same process. The end of
the input is the end of the job. Not here: how many there are and which one goes (`launching.spares`).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import runpy
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import MOST_MEMBERS, Members, Text
from shoal.entry import function_script
from shoal.entry.function_script import recorded_call
from shoal.environment import become_worker, script_here

READY = "shoal: spare is ready"
NICENESS = 5  # of the imports: a new spare must not slow the others down much, but be ready before it is needed
LONGEST_ORDER = 4 * 1024 * 1024  # bytes
# What a worker imports on its way to its first step, besides what its script alone needs.
IMPORTS = ("torch", "torch.nn.functional", "torch.optim", "shoal.entry.shoal_main")
_OWN = (__file__, "<frozen runpy>")  # files of the frames below the script's


class Order(msgspec.Struct, frozen=True):
    script: Text
    arguments: Members[Text]
    variables: Annotated[dict[Text, Text], Meta(max_length=MOST_MEMBERS)]


def encode_order(order: Order) -> bytes:
    return msgspec.json.encode(order) + b"\n"


def main() -> None:
    importing = threading.Thread(target=_import_gently)
    importing.start()
    importing.join()
    print(READY, flush=True)
    with os.fdopen(os.dup(0), "rb") as pipe:
        line = pipe.readline(LONGEST_ORDER)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the script's standard input is empty, as every worker's
    os.close(nothing)
    if line.endswith(b"\n"):
        _become(msgspec.json.decode(line, type=Order))


def _import_gently() -> None:
    """In a thread of its own, as niceness belongs to threads and cannot be taken back without privileges."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    for name in IMPORTS:
        with contextlib.suppress(Exception):  # the script will say what is wrong, if it needs that at all
            importlib.import_module(name)


def _become(order: Order) -> None:
    become_worker(order.variables)
    _load_extensions()
    is_function = recorded_call(order.script, order.arguments) is not None
    script = function_script.SCRIPT if is_function else str(Path(script_here(order.script)).absolute())
    sys.argv = [script, *order.arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120  as Python itself does it
    sys.excepthook = _without_our_frames
    runpy.run_path(script, run_name="__main__")


def _load_extensions() -> None:
    """What torch does at the end of its import; ours among them looks at the variables of a worker."""
    torch = sys.modules.get("torch")
    if torch is not None and torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()


def _without_our_frames(kind: type[BaseException], error: BaseException, frames: types.TracebackType | None) -> None:
    """The traceback begins where the script does."""
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename in _OWN:
        frames = frames.tb_next
    text = io.StringIO()
    traceback.print_exception(kind, error, frames, file=text)
    sys.stderr.write(text.getvalue())


if __name__ == "__main__":
    main()
