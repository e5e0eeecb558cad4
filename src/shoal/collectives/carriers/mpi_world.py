"""MPI in a process that no mpiexec started: a world of one, which can be connected to others later.

MPICH asks a process manager for the name of its world, over a descriptor, in a line protocol (PMI-1). All processes
without a process manager get the same name, and MPICH refuses to connect worlds of the same name. So while MPI starts,
this module answers as a process manager would, with a unique name. Only for the MPICH family (MPICH, and libraries with
its ABI); Open MPI speaks another protocol.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from shoal.collectives import texts
from shoal.errors import ShoalError, UsageError

THREAD_SERIALIZED = 2  # MPI's number: several threads, one at a time
CONNECT_SECONDS = 20  # for another world to connect
SETTINGS = {  # of MPICH, for this one start; the user's own settings take precedence
    "MPIR_CVAR_CH4_NETMOD": "ucx",  # the other one, OFI, hung with three worlds on one machine (MPICH 5.0.2)
    "MPIR_CVAR_CH4_COMM_CONNECT_TIMEOUT": str(CONNECT_SECONDS),
    "UCX_LOG_LEVEL": "fatal",  # Shoal reports a peer that died; the layers below need not
    "UCX_ERROR_SIGNALS": "",  # no handlers of its own for crashes of this process
}
_GREETING = {
    "init": "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    "get_maxes": "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=4096",
    "get_appnum": "cmd=appnum rc=0 appnum=0",
    "get_universe_size": "cmd=universe_size rc=0 size=1",
    "put": "cmd=put_result rc=0 msg=success",
    "get": "cmd=get_result rc=-1 msg=not_found value=unknown",
    "barrier_in": "cmd=barrier_out rc=0",
    "finalize": "cmd=finalize_ack rc=0",
}

_starting = threading.Lock()
_mpi: ModuleType | None = None
_is_given_up = False


def give_up() -> None:
    """A thread of this process is stuck in MPI: no other thread may enter."""
    global _is_given_up  # noqa: PLW0603  MPI is there once per process
    _is_given_up = True


def mpi() -> ModuleType:
    """mpi4py's MPI, started. It is never finalized: that would wait for worlds whose processes are gone."""
    global _mpi  # noqa: PLW0603  MPI starts once per process
    if _is_given_up:
        raise ShoalError("MPI waits in this process for a worker that was lost while a generation formed, without end")
    with _starting:
        if _mpi is None:
            _mpi = _start()
        return _mpi


def answer(line: str, world: str) -> str:
    """A process manager's answer to a process that is alone in its world. Pure."""
    command = dict(word.split("=", 1) for word in line.split() if "=" in word).get("cmd", "")
    if command == "get_my_kvsname":
        return f"cmd=my_kvsname rc=0 kvsname={world}"
    return _GREETING.get(command, f"cmd={command} rc=-1 msg=unknown")


def _start() -> ModuleType:
    try:
        import mpi4py  # noqa: PLC0415  only where this carrier is chosen
    except ImportError:
        raise UsageError(texts.NO_MPI4PY) from None
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    ours, theirs = socket.socketpair()
    settings = {name: os.environ.get(name, value) for name, value in SETTINGS.items()}
    with ours, theirs, _environment({**settings, "PMI_FD": str(theirs.fileno()), "PMI_RANK": "0", "PMI_SIZE": "1"}):
        try:
            from mpi4py import MPI  # noqa: PLC0415  after the settings
        except (ImportError, RuntimeError) as error:
            raise UsageError(texts.no_mpi_library(error)) from None
        if MPI.Is_initialized():
            raise UsageError(texts.MPI_STARTED_BEFORE)
        if not MPI.Get_library_version().startswith("MPICH"):
            raise UsageError(texts.no_mpich(MPI.Get_library_version().split(",")[0]))
        manager = threading.Thread(target=_manage, args=(ours, f"shoal_{uuid.uuid4().hex}"), daemon=True)
        manager.start()
        given = ctypes.c_int()
        # Through ctypes, which releases Python's lock, unlike mpi4py: the manager's thread has to answer meanwhile.
        failed = ctypes.CDLL(MPI.__file__).MPI_Init_thread(None, None, THREAD_SERIALIZED, ctypes.byref(given))
        ours.shutdown(socket.SHUT_RDWR)
        manager.join()
    if failed or given.value < THREAD_SERIALIZED:
        raise UsageError(texts.mpi_did_not_start(failed, given.value))
    for communicator in (MPI.COMM_SELF, MPI.COMM_WORLD):
        communicator.Set_errhandler(MPI.ERRORS_RETURN)
    _unlink_shared_memory()
    return MPI


def _manage(connection: socket.socket, world: str) -> None:
    with connection.makefile("rw", encoding="ascii") as lines:
        for line in lines:
            lines.write(answer(line, world) + "\n")
            lines.flush()


def _unlink_shared_memory() -> None:
    """No other process opens this world's shared memory by name; without a name it is freed with the process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    for name in set(re.findall(r"\S+/mpich_shm_\S+", maps)):
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for C libraries while MPI starts, and hide them from later child processes."""
    kept = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
