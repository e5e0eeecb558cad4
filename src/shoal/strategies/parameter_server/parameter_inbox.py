"""Values on their way from servers: each is in the model when the model's forward needs it.

Where workers run free, each module waits for its own parameters only, right before its forward; the rest is taken in
when the whole model's forward has ended. So code that reads a parameter of a module which has not run yet
may see it one update late, which is what running free means. Everywhere else the model waits for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from shoal.errors import ExchangeFailed
from shoal.parameters.client.client_pull import IncomingPull
from shoal.strategies.parameter_server.host_memory import room_for
from shoal.strategies.parameter_server.parameter_table import ServedParameter


class ParameterInbox:
    def __init__(
        self,
        entries: Sequence[ServedParameter],
        models: Iterable[nn.Module],
        failed: Callable[[ExchangeFailed], None],
        *,
        lazily: bool,
    ) -> None:
        """`failed`: called with a failure inside a forward, where hooks must not raise."""
        self._failed = failed
        self._parameters = {entry.name: entry.parameter for entry in entries}
        self._names = {id(entry.parameter): entry.name for entry in entries}
        self._lazily = lazily
        self._pull: IncomingPull | None = None
        self._pending: set[str] = set()
        self._order: dict[str, None] = {}  # of names, as forward was seen to need them
        self.updates = 0  # updates that are in all parameters
        self._handles: list[Any] = []
        for model in models:
            for module in model.modules():
                own = tuple(self._names[id(p)] for p in module.parameters(recurse=False) if id(p) in self._names)
                if own:
                    self._handles.append(module.register_forward_pre_hook(partial(self._needed, own)))
            if lazily:
                self._handles.append(model.register_forward_hook(self._over))
            else:
                self._handles.append(model.register_forward_pre_hook(self._over))

    @property
    def order(self) -> tuple[str, ...]:
        """All names, in the order in which forward needs them."""
        return tuple({**self._order, **dict.fromkeys(self._parameters)})

    def expect(self, pull: IncomingPull) -> None:
        self._pull, self._pending = pull, set(self._parameters)

    def abandon(self) -> None:
        """Forget what was expected: it will not be taken in."""
        self._pull, self._pending = None, set()

    def settle(self) -> None:
        """Take in all values that are expected."""
        if self._pull is None:
            return
        for name in [name for name in self.order if name in self._pending]:
            self._take(name)
        self._close()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.abandon()

    def _needed(self, names: tuple[str, ...], _module: nn.Module, _arguments: Any) -> None:
        try:
            for name in names:
                self._order.setdefault(name)
                if name in self._pending:
                    self._take(name)
        except ExchangeFailed as failure:
            self.abandon()
            self._failed(failure)
        if self._pull is not None and not self._pending:
            self._close()

    def _over(self, *_: Any) -> None:
        try:
            self.settle()
        except ExchangeFailed as failure:
            self.abandon()
            self._failed(failure)

    @torch.no_grad()
    def _take(self, name: str) -> None:
        assert self._pull is not None
        values = self._parameters[name].data
        if values.is_cpu:
            self._pull.wait(name, into=values)
        else:  # many pieces become one copy to the device, and values that change meanwhile never get there
            room = room_for(values)
            self._pull.wait(name, into=room)
            values.copy_(room)
        self._pending.discard(name)

    def _close(self) -> None:
        assert self._pull is not None
        self.updates = self._pull.updates
        self._pull = None
