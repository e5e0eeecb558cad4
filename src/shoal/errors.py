"""Everything that can go wrong, as one tree, with the exit code a user sees.

    ShoalError                   exit 70   anything below; raised itself only for a broken invariant of ours
    ├── UsageError               exit 2    an option, argument or call that cannot work as given
    │   └── ScriptStartsProcesses          the script starts its own worker processes under `shoal run`
    ├── ScriptFailed             exit 1    the user's script raised, or left with a code of its own
    ├── WorkerLost               exit 3    a worker died or went silent
    ├── WorkersDisagree          exit 4    workers do different things at the same point
    │   └── ModelsDiffer                   their models differ in names, shapes or dtypes
    ├── DataError                exit 5    the data set cannot be dealt out as asked
    ├── AddressUnavailable       exit 6    a port is in use or an address cannot be listened on or reached
    ├── RunDirectoryExists       exit 7    the run directory is already there
    ├── Refused                  exit 8    the other side turned us away: wrong token, version, generation
    │   ├── TermsDiffer                    a newcomer's script differs from the job's
    │   ├── Untrusted                      of a connection's other end: no proof, or somebody in between (transport)
    │   └── ServerRefused                  a parameter server: no room, over its quota, a table it cannot hold
    ├── CheckpointUnusable       exit 9    no checkpoint can be used: none there, damaged, or of another model
    ├── ServersLost              exit 10   no parameter server can be reached any more
    ├── ServerUnfit              exit 70   a parameter server has lost track of a job that others serve well: it ends
    ├── Interrupted              exit 130  Ctrl-C
    ├── WireError                exit 8    bytes from outside that are not what the protocol allows
    └── ExchangeFailed           never reaches user code: it makes the step void
        ├── PeerLost                       a peer's connection closed
        ├── ReplicasDiffer                 the workers' parameters are not the same, bit for bit
        ├── MeetingCalled                  a server holds a read back: all workers are called to meet
        ├── ParametersLost                 no living parameter server holds some of the values any more
        └── Aborted                        the group was aborted from this side

`docs/exit-codes.md` is the page for users; a test keeps it equal to this tree. Also here: making text that others wrote
safe to print.
"""

from __future__ import annotations

from shoal.values import Unreached

NOBODY = Unreached()


class ShoalError(Exception):
    """Base of all errors of ours. Its text is one line: what failed, where, with which values, what to do next."""

    exit_code = 70


class UsageError(ShoalError):
    exit_code = 2


class ScriptStartsProcesses(UsageError):
    pass


class ScriptFailed(ShoalError):
    exit_code = 1


class WorkerLost(ShoalError):
    exit_code = 3


class WorkersDisagree(ShoalError):
    """`sides`: two ranks and the labels of the operations that they are in, where these differ."""

    exit_code = 4

    def __init__(self, reason: str, *, sides: tuple[tuple[int, str], tuple[int, str]] | None = None) -> None:
        super().__init__(reason)
        self.sides = sides


class ModelsDiffer(WorkersDisagree):
    pass


class DataError(ShoalError):
    exit_code = 5


class AddressUnavailable(ShoalError):
    exit_code = 6


class RunDirectoryExists(ShoalError):
    exit_code = 7


class Refused(ShoalError):
    exit_code = 8


class TermsDiffer(Refused):
    pass


class ServerRefused(Refused):
    """`kind` is the server's word for the cause: version, quota, memory, rule, table, ..."""

    def __init__(self, reason: str, *, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind


class WireError(ShoalError):
    exit_code = 8


class CheckpointUnusable(ShoalError):
    exit_code = 9


class ServersLost(ShoalError):
    exit_code = 10


class ServerUnfit(ShoalError):
    exit_code = 70


class Interrupted(ShoalError):
    exit_code = 130


class ExchangeFailed(ShoalError):
    """A collective did not finish on this worker. `peer` is the rank that it waited for, if that is known."""

    def __init__(self, reason: str, *, peer: int | None = None) -> None:
        super().__init__(reason)
        self.peer = peer


class PeerLost(ExchangeFailed):
    """`unreached` has all ranks that could not be connected to."""

    def __init__(self, reason: str, *, peer: int | None = None, unreached: Unreached = NOBODY) -> None:
        super().__init__(reason, peer=peer)
        self.unreached = unreached


class ReplicasDiffer(ExchangeFailed):
    pass


class MeetingCalled(ExchangeFailed):
    """`meetings`: how many were called so far. `calling`: why the newest one was called."""

    def __init__(self, reason: str, *, meetings: int = 0, calling: str = "") -> None:
        super().__init__(reason)
        self.meetings = meetings
        self.calling = calling


class ParametersLost(ExchangeFailed):
    is_total = False  # all servers that had the job's values are lost, so that no server can report it

    @classmethod
    def all(cls) -> ParametersLost:
        lost = cls("all servers that had the job's values are lost, and others have begun in their place")
        lost.is_total = True
        return lost


class Aborted(ExchangeFailed):
    pass


def all_errors() -> tuple[type[ShoalError], ...]:
    """Every class of the tree, base first."""
    found: list[type[ShoalError]] = [ShoalError]
    for error in found:
        found.extend(error.__subclasses__())
    return tuple(found)


def by_name(name: str, text: str) -> ShoalError:
    """Rebuild an error that another process reported by class name. Unknown names become a plain ShoalError."""
    kind = {error.__name__: error for error in all_errors()}.get(name, ShoalError)
    return kind(text)


def printable(text: str) -> str:
    """Replace control characters, which could move the cursor, and characters that UTF-8 cannot hold."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
