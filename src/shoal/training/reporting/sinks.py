"""Writers that a script has handed to `run.log_to`: TensorBoard's, Weights & Biases', or a function of its own.

Each gets the values of applied steps in the order of steps, on the thread that trains, in batches at the rhythm of
reports. A writer that raises is dropped, and training goes on. Not here: which values count (`reporter`); closing a
writer, which is the script's own business.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.errors import UsageError
from shoal.training import texts

Write = Callable[[int, dict[str, float]], object]

LONGEST_TEXT = 500  # characters of a writer's error that are passed on


class Sinks:
    def __init__(self, advise: Callable[[str], None]) -> None:
        self._advise = advise
        self._writers: list[tuple[str, Write]] = []  # with the name for messages
        self._script: object | None = None  # the start of the script that the writers are from
        self._queue: list[tuple[int, dict[str, float]]] = []

    def add(self, writer: object, script: object) -> None:
        """`script` tells starts of the script apart: one that starts again from the top hands over its writers anew."""
        if script is not self._script:
            self._writers.clear()
            self._script = script
        self._writers.append((_name(writer), _method(writer)))

    def put(self, step: int, values: dict[str, float]) -> None:
        """Queue values that count. They are not copied: nobody changes them any more."""
        if self._writers and values:
            self._queue.append((step, values))

    def hand_over(self) -> None:
        """Hand all queued values to every writer."""
        waiting, self._queue = self._queue, []
        for writer in tuple(self._writers):
            name, write = writer
            step = 0
            try:
                for step, values in waiting:
                    write(step, dict(values))
            except Exception as error:  # no error of a writer may end training
                self._writers.remove(writer)
                self._advise(_farewell(name, step, error))


def _method(writer: object) -> Write:
    """How to call a writer. TensorBoard's writers have `add_scalar`, runs of Weights & Biases have `log`."""
    add_scalar, log = getattr(writer, "add_scalar", None), getattr(writer, "log", None)
    if callable(add_scalar):
        return lambda step, values: [add_scalar(name, value, step) for name, value in values.items()]
    if callable(log):
        return lambda step, values: log(values, step=step)
    if callable(writer):
        return writer
    raise UsageError(texts.no_writer(_name(writer)))


def _name(writer: object) -> str:
    """The name of a function or a module; for any other object, that of its class."""
    name = getattr(writer, "__name__", None)
    return name if isinstance(name, str) else type(writer).__name__


def _farewell(name: str, step: int, error: Exception) -> str:
    said = f"{_name(error)}: {error}".encode("utf-8", "backslashreplace").decode().partition("\n")[0][:LONGEST_TEXT]
    return texts.writer_failed(name, step, said)
