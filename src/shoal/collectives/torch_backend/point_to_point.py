"""torch's sends and receives on a Shoal mailbox: matched by source and tag, in order, independent of collectives."""

from __future__ import annotations

import torch

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.torch_backend.calls import in_torch_errors
from shoal.collectives.torch_backend.work import Clock, DeliveryWork, ShoalWork
from shoal.errors import UsageError


class PointToPoint:
    _mailbox: Mailbox | None  # None in a group of one
    _clock: Clock
    _coalesced: list[ShoalWork] | None = None  # what was started since `_start_coalescing`

    @in_torch_errors
    def send(self, tensors: list[torch.Tensor], target: int, tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().send(tensor, target, tag), tensors)

    @in_torch_errors
    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().receive(tensor, source, tag), tensors)

    @in_torch_errors
    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> DeliveryWork:
        (tensor,) = tensors
        return self._posted(self._post().receive(tensor, None, tag), tensors)

    def _posted(self, delivery: Delivery, tensors: list[torch.Tensor]) -> DeliveryWork:
        work = DeliveryWork(delivery, tensors, self._clock)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _post(self) -> Mailbox:
        if self._mailbox is None:
            raise UsageError("a group of one rank has nobody to exchange tensors with")
        return self._mailbox
