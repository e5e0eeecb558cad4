"""The gradients of one model in an exchange: taken from autograd, reduced where they are, handed to the parameters.

Groups of gradients leave in the order of the plan, each as soon as it is complete. The last group carries a flag per
parameter, so that all workers know which parameters any worker used. What `.grad` held before is added at the end, so
that `backward()` accumulates for n workers as it does for one. Where a codec encodes gradients, the flags travel by
themselves: they must arrive as they are. Not here: when an exchange starts and ends (`gradient_exchange`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.collectives.group import Group, Pending
from shoal.strategies.all_reduce.gradient_memory import GradientLayout
from shoal.strategies.all_reduce.gradient_plan import GradientSize, completed, first_order, group_size, plan_groups

# Groups on a GPU are larger by this factor: each costs half a millisecond for the way to the host and back.
GPU_FACTOR = 8
MOST_KEY = 100  # characters of a parameter's name in a codec's key, for people; a digest makes it unique


@dataclass(frozen=True)
class Scales:
    """What this worker's gradients are multiplied by."""

    each: float  # when a gradient is taken; 0 takes zeros, even in place of nan
    group: float  # while a group is reduced, which costs nothing


class GradientGroups:
    """The gradients of a list of parameters that require them."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, group_bytes: int, least_bytes: int = 0) -> None:
        """`group_bytes`: of a group, at most. `least_bytes`: of a group over links, at least (`Group.least_bytes`)."""
        self.parameters = list(parameters)
        self._layouts = [GradientLayout(parameter) for parameter in self.parameters]
        self._sizes = [GradientSize((p.dtype, p.device), p.numel() * p.element_size()) for p in self.parameters]
        self.is_on_gpu = any(parameter.is_cuda for parameter in self.parameters)
        self._factor = GPU_FACTOR if self.is_on_gpu else 1
        self._group_bytes = group_bytes
        self._least_bytes = least_bytes
        # Gradients that this backward has made, as autograd made them, in the order in which they came. They are not
        # in `.grad`: if backward raises, an optimizer must not find what no other worker has.
        self.arrived: dict[int, torch.Tensor | None] = {}
        self._gradients: dict[int, torch.Tensor] = {}  # this worker's part in the exchange, in memory of our own
        self._earlier: dict[int, torch.Tensor] = {}  # what `.grad` held before this exchange
        self._sparse: set[int] = set()  # parameters whose gradients autograd makes as sparse tensors
        self._pending: list[Pending] = []  # by group that has left
        self._flags: torch.Tensor | None = None  # by parameter: not 0 where some worker used it
        self._flags_pending: Pending | None = None  # where the flags travel by themselves
        self.follow(first_order(len(self.parameters)))

    def follow(self, order: Sequence[int], *, named: Sequence[str] = ()) -> None:
        """Between exchanges: gradients travel in this order from now on.

        `named`: by parameter, for a codec to know groups by what is in them. Without names nothing is encoded.
        """
        total = sum(size.bytes for size in self._sizes)
        most, least = self._group_bytes * self._factor, self._least_bytes * self._factor
        self._plan = plan_groups(self._sizes, order, group_bytes=group_size(total, most=most, least=least))
        self.keys = [self._key(group, named) for group in self._plan]
        self._place = {index: number for number, group in enumerate(self._plan) for index in group}
        self.reset()

    def _key(self, group: Sequence[int], named: Sequence[str]) -> str:
        """A key that depends on the tensors and on their order, since a residual belongs to single elements."""
        if not named or not self.parameters[group[0]].is_floating_point():
            return ""
        digest = hashlib.blake2b("\n".join(named[index] for index in group).encode(), digest_size=8).hexdigest()
        return f"{named[group[0]][:MOST_KEY]} and {len(group) - 1} more, {digest}"

    @property
    def leave_early(self) -> bool:
        """Whether anything leaves before the end of a backward."""
        return len(self._plan) > 1

    # While backward runs

    def set_aside(self, index: int) -> None:
        """Before autograd writes a gradient: keep what `.grad` holds, so that the new one comes alone."""
        parameter = self.parameters[index]
        if parameter.grad is not None:
            self._earlier.setdefault(index, parameter.grad)
            parameter.grad = None

    def arrive(self, index: int) -> bool:
        """A gradient came for the first time in this backward. Returns whether a group can leave now."""
        parameter = self.parameters[index]
        self.arrived[index] = parameter.grad
        parameter.grad = None
        number = self._place[index]
        self._missing[number] -= 1
        return not self._missing[number] and number == len(self._pending) and number < len(self._plan) - 1

    def add(self, index: int) -> None:
        """A gradient that has arrived and has not left came again in the same backward."""
        parameter, first = self.parameters[index], self.arrived[index]
        self.arrived[index] = parameter.grad if first is None or parameter.grad is None else first + parameter.grad
        parameter.grad = None

    def has_left(self, index: int) -> bool:
        return self._place[index] < len(self._pending)

    def launch_ready(self, group: Group, label: str, scales: Scales) -> None:
        """Start reducing every complete group but the last, in the order that all workers share."""
        while len(self._pending) < len(self._plan) - 1 and not self._missing[len(self._pending)]:
            self._launch(group, label, scales)

    def hold(self, scale: float) -> None:
        """The end of a backward whose gradients wait for those of further batches."""
        for index in self.arrived:
            self._take(index, scale)
        self._expect()

    def take_over(self, others: GradientGroups) -> None:
        """Between two batches of a step: go on with what other groups hold of the same parameters."""
        places = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        for index, parameter in enumerate(others.parameters):
            if (own := places.get(id(parameter))) is not None:
                if index in others._gradients:
                    self._gradients[own] = others._gradients[index]
                if index in others._earlier:
                    self._earlier[own] = others._earlier[index]
                if index in others._sparse:
                    self._sparse.add(own)

    # When it is over

    def launch_rest(self, group: Group, label: str, scales: Scales) -> None:
        """Start reducing all that is left. Another worker may have a gradient where this one has none."""
        used = [index in self.arrived or index in self._gradients for index in range(len(self.parameters))]
        while len(self._pending) < len(self._plan) - 1:
            self._launch(group, label, scales)
        if self._plan:
            like = self.parameters[self._plan[-1][0]]
            self._flags = torch.tensor(used, dtype=like.dtype, device=like.device)
            self._launch(group, label, scales, self._flags)

    def _launch(self, group: Group, label: str, scales: Scales, *extra: torch.Tensor) -> None:
        number = len(self._pending)
        tensors, scale = [], scales.group
        for index in self._plan[number]:
            if index in self.arrived:
                self._take(index, scales.each)
            else:
                self.set_aside(index)
            if index not in self._gradients:
                self._gradients[index] = self._layouts[index].zeros()
            tensors.append(self._layouts[index].flat(self._gradients[index]))
        if scale != 1.0 and not tensors[0].is_floating_point():  # complex: groups scale real numbers only
            for tensor in tensors:
                tensor.mul_(scale)
            scale = 1.0
        label, key = f"{label}, gradients {number}", self.keys[number]
        together = () if key else extra
        self._pending.append(group.all_reduce([*tensors, *together], label=label, scale=scale, key=key))
        if key and extra:
            self._flags_pending = group.all_reduce(extra, label=f"{label}, flags")

    def _take(self, index: int, scale: float) -> None:
        """Take a gradient over from autograd, into memory of our own."""
        layout, gradient = self._layouts[index], self.arrived[index]
        self.arrived[index] = None
        if gradient is None:  # a hook of the script's has thrown it away
            return
        if gradient.is_sparse:
            self._sparse.add(index)
            gradient = gradient.detach().to_dense()
        held = self._gradients.get(index)
        if held is not None:
            if scale:
                held.add_(gradient.detach(), alpha=scale)
        elif scale:
            own = layout.own(gradient)
            self._gradients[index] = own if scale == 1.0 else own.mul_(scale)
        else:
            self._gradients[index] = layout.zeros()

    def wait(self) -> None:
        """Return when every group is reduced; raise the first failure."""
        for pending in (*self._pending, *filter(None, [self._flags_pending])):
            pending.wait()

    def order(self) -> tuple[int, ...]:
        """The order in which gradients came in this exchange, on this worker."""
        return completed(self.arrived, len(self.parameters))

    def publish(self, correction: float) -> None:
        """Give each parameter its reduced gradient, times a factor. Parameters that no worker used keep theirs."""
        flags = [] if self._flags is None else (self._flags != 0).tolist()
        for index, is_used in enumerate(flags):
            earlier = self._earlier.get(index)
            if is_used:
                self.parameters[index].grad = self._result(index, correction, earlier)
            elif earlier is not None:
                self.parameters[index].grad = earlier
        self.reset()

    def _result(self, index: int, correction: float, earlier: torch.Tensor | None) -> torch.Tensor:
        gradient = self._gradients[index]
        if correction != 1.0:
            gradient.mul_(correction)
        if index in self._sparse:
            sparse = gradient.to_sparse(1)
            return sparse if earlier is None else (sparse + earlier).coalesce()
        return gradient if earlier is None else gradient.add_(earlier)

    def discard(self) -> None:
        """A void exchange: gradients become zero, so that nothing the script does with them can go wrong."""
        for index, (parameter, layout) in enumerate(zip(self.parameters, self._layouts, strict=True)):
            parameter.grad = layout.zeros().to_sparse(1) if index in self._sparse else layout.zeros()
        self.reset()

    def reset(self) -> None:
        """Drop all of an exchange. Operations that were given up keep their memory, which is never reused."""
        self._gradients, self._earlier = {}, {}
        self._pending, self._flags, self._flags_pending = [], None, None
        self._expect()

    def _expect(self) -> None:
        """Get ready for the next backward."""
        self.arrived = {}
        self._missing = [len(group) for group in self._plan]  # gradients that each group still waits for
