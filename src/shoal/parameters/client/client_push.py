"""What a worker stages on servers: gradients that leave as soon as a unit of them is whole, and whole states.

Gradients are copied once, into a slot that is laid out like the servers' parts. A server that shares this machine's
memory is told the place, others are sent the bytes. When the map changes before the push is decided, the same values
are laid out and staged anew. Where the job has a codec, a block that any other machine's server holds is encoded, once,
and its decoded values take the place of the gradient's: all holders of the block get the same bits, as bytes of the
codec, as bytes of their own or in memory. Not here: proposing that the push be applied (`parameter_client`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from shoal.codecs.codec import Leg
from shoal.errors import ShoalError, UsageError
from shoal.parameters import texts
from shoal.parameters.blocks import large_copy
from shoal.parameters.blocks.block_codec import BlockCodec, joined_blocks
from shoal.parameters.blocks.byte_views import torch_type
from shoal.parameters.blocks.table_blocks import Block
from shoal.parameters.client.client_core import ClientCore
from shoal.parameters.client.client_layout import ClientLayout
from shoal.parameters.client.client_memory import Slot, StagingMemory
from shoal.parameters.client.client_servers import ServerLink
from shoal.parameters.connections.connection import Connection
from shoal.wire.parameter_messages import AnyNote, Discard, Stage, StageDone, StageEnd
from shoal.wire.tables import PushId


@dataclass
class _Progress:
    """With one server."""

    connection: Connection | None = None  # on which it was sent; another one: all of it is sent again
    sent: set[int] = field(default_factory=set)  # units
    size: int = 0  # bytes of them
    request: int = 0  # of the StageEnd; 0: not sent
    is_done: bool = False


@dataclass(frozen=True)
class Parcel:
    """One unit of what is staged, for one server."""

    size: int  # bytes, as they lie in the server's part
    place: int = -1  # in the arena; -1: they are sent
    data: memoryview | bytes | None = None
    state: bytes = b""  # what they hold of each block, where it is more than gradients
    codec: str = ""  # that encoded `data`
    lengths: tuple[int, ...] = ()  # of the encoded blocks


class PushStaging:
    """Something that is staged as one push by one map: an activity."""

    is_state = False

    def __init__(self, core: ClientCore, layout: ClientLayout, number: PushId) -> None:
        self.core = core
        self.layout = layout
        self.id = number
        self.failure: ShoalError | None = None
        self.is_over = False  # nobody waits for it any more: nothing more of it is sent
        self._progress = {server: _Progress() for server in layout.parts}

    @property
    def is_current(self) -> bool:
        return self.core.layout is self.layout

    @property
    def is_staged(self) -> bool:
        return all(progress.is_done for progress in self._progress.values())

    def parcel(self, link: ServerLink, unit: int) -> Parcel | None:
        """None: the unit is not whole yet."""
        raise NotImplementedError

    def pump(self) -> None:
        if self.is_over or not self.is_current:
            return  # whoever waits for it lays it out anew
        for server in self.layout.parts:
            link = self.core.links.ready(server)
            if link is not None:
                self._pump(link)

    def _pump(self, link: ServerLink) -> None:
        number = link.server.number
        progress = self._progress[number]
        if progress.connection is not link.connection:
            progress = self._progress[number] = _Progress(connection=link.connection)
        units = self.layout.parts[number].units
        for index in range(len(units)):
            if index not in progress.sent:
                self._send(link, progress, index)
        if len(progress.sent) == len(units) and not progress.request:
            progress.request = self.core.number_for(self)
            link.send(StageEnd(request=progress.request, push=self.id, view=self.layout.version, size=progress.size))

    def _send(self, link: ServerLink, progress: _Progress, index: int) -> None:
        parcel = self.parcel(link, index)
        if parcel is None:
            return
        unit = self.layout.parts[link.server.number].units[index]
        note = Stage(
            push=self.id,
            view=self.layout.version,
            keys=self.core.introduce(link, self.layout),
            first=unit.first,
            last=unit.last,
            place=parcel.place,
            is_state=self.is_state,
            state=parcel.state,
            codec=parcel.codec,
            lengths=parcel.lengths,
        )
        link.send(note, parcel.data)
        link.shared += parcel.size if parcel.place >= 0 else 0
        progress.sent.add(index)
        progress.size += parcel.size

    def discard(self) -> None:
        """It will never be proposed: servers may forget it. Runs in the client's thread."""
        for server, progress in self._progress.items():
            link = self.core.links.ready(server)
            if link is not None and progress.sent and progress.connection is link.connection:
                link.send(Discard(push=self.id))

    def room(self, link: ServerLink, note: AnyNote, size: int) -> memoryview | None:
        del link, note, size
        return None  # no answer has one

    def heard(self, link: ServerLink, note: AnyNote, payload: memoryview | None) -> None:
        del payload
        progress = self._progress.get(link.server.number)
        if isinstance(note, StageDone) and progress is not None and note.request == progress.request:
            progress.is_done = True
            if self.core.memory is not None:
                self.core.memory.begun(link.server.number, self.layout.version)

    def forget(self, link: ServerLink, request: int) -> None:
        progress = self._progress.get(link.server.number)
        if progress is not None and progress.request == request:
            self._progress[link.server.number] = _Progress(connection=link.connection)


class OutgoingPush(PushStaging):
    """Gradients on their way. `put` from any thread, each tensor once; what was not put is zero at the commit."""

    def __init__(self, core: ClientCore, layout: ClientLayout, number: PushId, slot: Slot) -> None:
        super().__init__(core, layout, number)
        assert core.memory is not None
        self._codec = core.codec  # None: nothing is encoded
        self._encoded: dict[int, bytes] = {}  # by number of the block: what decodes to the values in the slot
        self._memory: StagingMemory = core.memory
        self._slot = slot
        self._left = {server: [unit.size for unit in part.units] for server, part in layout.parts.items()}
        self._missing = set(layout.names)  # tensors

    def put(self, name: str, gradient: torch.Tensor, scale: float = 1.0) -> torch.Tensor | None:
        """Copy a gradient, times `scale`, into the staging memory. It may change afterwards.

        What servers get instead, where a codec has encoded some of it; None: they get the gradient itself.
        """
        number = self.layout.names.get(name)
        if number is None:
            raise UsageError(texts.not_in_the_table(name, len(self.layout.names)))
        flat = self._flat(number, gradient)
        with self.core.thread.changed:
            if name not in self._missing:
                raise ShoalError(f"the gradient of {name} was put into push {self.id.number} before")
            self._missing.remove(name)
            blocks = () if self._codec is None else self._far_blocks(number)
        coded = None
        if blocks and self._codec is not None:
            flat = coded = self._through(self._codec, blocks, flat.to("cpu", copy=True).mul_(scale))
            scale = 1.0
        self._copy(number, flat, scale)
        self._filled(number)
        return None if coded is None else coded.reshape(gradient.shape)

    def put_zeros(self) -> None:
        """For every tensor that was not put."""
        for name in sorted(self._missing):
            number = self.layout.names[name]
            for view in self._slot.views[number]:
                view.zero_()
            self._missing.remove(name)
            self._filled(number)

    def copy_into(self, other: OutgoingPush) -> None:
        """The same values, by another map and in another slot. What was encoded once is not encoded again."""
        other._encoded = dict(self._encoded)
        for name, number in self.layout.names.items():
            if name not in self._missing:
                other.put(name, self._value(number))

    def parcel(self, link: ServerLink, unit: int) -> Parcel | None:
        server = link.server.number
        if self._left[server][unit]:
            return None
        span = self.layout.parts[server].units[unit]
        if link.sees_arena:
            self._slot.readers.add(server)
            return Parcel(span.size, place=self._memory.place(self._slot, server, span.start))
        if self._codec is not None and self._encoded:
            blocks = self.layout.parts[server].blocks[span.first : span.last]
            encoded = joined_blocks([self._encoded.get(block) for block in blocks])
            if encoded is not None:
                return Parcel(span.size, data=encoded.data, codec=self._codec.text, lengths=encoded.lengths)
        return Parcel(span.size, data=self._memory.view(self._slot, server, span.start, span.stop))

    def over(self, *, is_void: bool) -> None:
        """The script's side is done with it. What is void is read by no server. The lock is held."""
        self.core.end(self)
        self.is_over = True
        if is_void:
            self._slot.readers.clear()
        self._slot.is_over = True
        self._slot.free_if_over()
        self.core.thread.changed.notify_all()

    def _flat(self, number: int, gradient: torch.Tensor) -> torch.Tensor:
        spec = self.layout.table.tensors[number]
        if tuple(gradient.shape) != spec.shape or gradient.dtype != torch_type(spec.dtype):
            given = texts.tensor_kind(str(gradient.dtype).removeprefix("torch."), tuple(gradient.shape))
            raise UsageError(texts.gradient_differs(spec.name, given, texts.tensor_kind(spec.dtype, spec.shape)))
        if gradient.layout != torch.strided:
            raise UsageError(texts.sparse_gradient(spec.name))
        return gradient.detach().reshape(-1)  # copies what is not contiguous

    def _far_blocks(self, number: int) -> tuple[Block, ...]:
        """Those of a tensor that a server on another machine holds, and that were not encoded yet. The lock is held."""
        blocks = self.layout.blocks_of(number)
        step = blocks[0].stop if blocks else 1  # elements: all blocks of a tensor but the last are as long as the first
        indexes = {
            index
            for stretch in self.layout.writes[number]
            if self.core.is_far(stretch.server)
            for index in range(stretch.start // step, -(-stretch.stop // step))
        }
        return tuple(blocks[index] for index in sorted(indexes) if blocks[index].number not in self._encoded)

    def _through(self, codec: BlockCodec, blocks: Sequence[Block], flat: torch.Tensor) -> torch.Tensor:
        """Encode blocks of a tensor; their values become what whoever decodes them gets."""
        for block in blocks:
            if codec.takes(block.number):
                values = flat[block.start : block.stop]
                data = self._encoded[block.number] = codec.encode(block.number, Leg.CONTRIBUTION, values)
                codec.decode(block.number, Leg.CONTRIBUTION, memoryview(data), values)
        return flat

    def _copy(self, number: int, flat: torch.Tensor, scale: float) -> None:
        for stretch, view in zip(self.layout.writes[number], self._slot.views[number], strict=True):
            source = flat[stretch.start : stretch.stop]
            if scale == 1.0:
                large_copy.copy(view, source)
            elif source.device == view.device:
                torch.mul(source, scale, out=view)
            else:
                view.copy_(source).mul_(scale)

    def _filled(self, number: int) -> None:
        """Units that are whole now leave."""
        is_whole = False
        with self.core.thread.changed:
            for stretch in self.layout.writes[number]:
                self._left[stretch.server][stretch.piece] -= stretch.size
                is_whole |= not self._left[stretch.server][stretch.piece]
            if is_whole and self.is_current:
                self.core.thread.do(self.pump)

    def _value(self, number: int) -> torch.Tensor:
        """What was put, with its scale."""
        spec = self.layout.table.tensors[number]
        flat = torch.empty(spec.shape, dtype=torch_type(spec.dtype)).reshape(-1)
        for stretch, view in zip(self.layout.writes[number], self._slot.views[number], strict=True):
            flat[stretch.start : stretch.stop] = view
        return flat.reshape(spec.shape)


class OutgoingState(PushStaging):
    """Whole blocks with their optimizers' state, packed by unit before anything is sent."""

    is_state = True

    def __init__(
        self, core: ClientCore, layout: ClientLayout, number: PushId, parcels: Mapping[tuple[int, int], Parcel]
    ) -> None:
        super().__init__(core, layout, number)
        self._parcels = parcels  # by server and unit

    def parcel(self, link: ServerLink, unit: int) -> Parcel | None:
        return self._parcels[link.server.number, unit]
