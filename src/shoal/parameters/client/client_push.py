"""What a worker stages on servers: gradients, each unit sent as soon as it is whole, and whole states.

Gradients are copied once, into a slot that is laid out like the servers' parts. A server that shares this machine's
memory is told the place; others are sent the bytes. When the map changes before the push is decided, the same values
are laid out and staged anew. Where the job has a codec, a block that any server on another machine holds is encoded
once, and its decoded values replace the gradient: all holders of the block get the same bits, whether encoded, as
plain bytes or in memory. Not here: proposing that the push be applied (`parameter_client`).
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
from shoal.parameters.client.client_servers import ServerLine
from shoal.parameters.connections.connection import Connection
from shoal.wire.parameter_messages import AnyNote, Discard, Stage, StageDone, StageEnd
from shoal.wire.tables import PushId


@dataclass
class _Progress:
    """What one server has been sent."""

    connection: Connection | None = None  # everything below went over this one; on a new one all is sent again
    sent: set[int] = field(default_factory=set)  # units
    size: int = 0  # bytes of the units sent
    request: int = 0  # number of the StageEnd; 0: not sent
    is_done: bool = False


@dataclass(frozen=True)
class Parcel:
    """One staged unit, for one server."""

    size: int  # bytes, as they lie in the server's part
    place: int = -1  # in the arena; -1: `data` is sent
    data: memoryview | bytes | None = None
    state: bytes = b""  # for whole states: describes what `data` holds of each block
    codec: str = ""  # the codec that encoded `data`
    lengths: tuple[int, ...] = ()  # bytes of each encoded block


class PushStaging:
    """An activity that stages one push under one map."""

    is_state = False

    def __init__(self, core: ClientCore, layout: ClientLayout, number: PushId) -> None:
        self.core = core
        self.layout = layout
        self.id = number
        self.failure: ShoalError | None = None
        self.is_over = False  # the script's thread has finished with it: nothing more is sent
        self._progress = {server: _Progress() for server in layout.parts}

    @property
    def is_current(self) -> bool:
        return self.core.layout is self.layout

    @property
    def is_staged(self) -> bool:
        return all(progress.is_done for progress in self._progress.values())

    def parcel(self, line: ServerLine, unit: int) -> Parcel | None:
        """None: the unit is not whole yet."""
        raise NotImplementedError

    def pump(self) -> None:
        if self.is_over or not self.is_current:
            return  # under a new map, the script's thread lays the push out anew
        for server in self.layout.parts:
            line = self.core.lines.ready(server)
            if line is not None:
                self._pump(line)

    def _pump(self, line: ServerLine) -> None:
        number = line.server.number
        progress = self._progress[number]
        if progress.connection is not line.connection:
            progress = self._progress[number] = _Progress(connection=line.connection)
        units = self.layout.parts[number].units
        for index in range(len(units)):
            if index not in progress.sent:
                self._send(line, progress, index)
        if len(progress.sent) == len(units) and not progress.request:
            progress.request = self.core.number_for(self)
            line.send(StageEnd(request=progress.request, push=self.id, view=self.layout.version, size=progress.size))

    def _send(self, line: ServerLine, progress: _Progress, index: int) -> None:
        parcel = self.parcel(line, index)
        if parcel is None:
            return
        unit = self.layout.parts[line.server.number].units[index]
        note = Stage(
            push=self.id,
            view=self.layout.version,
            keys=self.core.introduce(line, self.layout),
            first=unit.first,
            last=unit.last,
            place=parcel.place,
            is_state=self.is_state,
            state=parcel.state,
            codec=parcel.codec,
            lengths=parcel.lengths,
        )
        line.send(note, parcel.data)
        line.shared += parcel.size if parcel.place >= 0 else 0
        progress.sent.add(index)
        progress.size += parcel.size

    def discard(self) -> None:
        """Tell servers to forget this push, which will never be proposed. Runs in the client's thread."""
        for server, progress in self._progress.items():
            line = self.core.lines.ready(server)
            if line is not None and progress.sent and progress.connection is line.connection:
                line.send(Discard(push=self.id))

    def room(self, line: ServerLine, note: AnyNote, size: int) -> memoryview | None:
        del line, note, size
        return None  # no answer has a payload

    def heard(self, line: ServerLine, note: AnyNote, payload: memoryview | None) -> None:
        del payload
        progress = self._progress.get(line.server.number)
        if isinstance(note, StageDone) and progress is not None and note.request == progress.request:
            progress.is_done = True
            if self.core.memory is not None:
                self.core.memory.begun(line.server.number, self.layout.version)

    def forget(self, line: ServerLine, request: int) -> None:
        progress = self._progress.get(line.server.number)
        if progress is not None and progress.request == request:
            self._progress[line.server.number] = _Progress(connection=line.connection)


class OutgoingPush(PushStaging):
    """Gradients on their way. `put` each tensor once, from any thread; a tensor not put before the commit is zero."""

    def __init__(self, core: ClientCore, layout: ClientLayout, number: PushId, slot: Slot) -> None:
        super().__init__(core, layout, number)
        assert core.memory is not None
        self._codec = core.codec  # None: nothing is encoded
        self._encoded: dict[int, bytes] = {}  # by block number: bytes that decode to the values in the slot
        self._memory: StagingMemory = core.memory
        self._slot = slot
        self._left = {server: [unit.size for unit in part.units] for server, part in layout.parts.items()}
        self._missing = set(layout.names)  # tensors

    def put(self, name: str, gradient: torch.Tensor, scale: float = 1.0) -> torch.Tensor | None:
        """Copy a gradient, times `scale`, into the staging memory. The gradient may change afterwards.

        Returns the values that servers get, if a codec has encoded some of them; None: they get the scaled gradient.
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
        """Put zeros for every tensor that was not put."""
        for name in sorted(self._missing):
            number = self.layout.names[name]
            for view in self._slot.views[number]:
                view.zero_()
            self._missing.remove(name)
            self._filled(number)

    def copy_into(self, other: OutgoingPush) -> None:
        """Put the same values into a push of another map. Blocks that are encoded already are not encoded again."""
        other._encoded = dict(self._encoded)
        for name, number in self.layout.names.items():
            if name not in self._missing:
                other.put(name, self._value(number))

    def parcel(self, line: ServerLine, unit: int) -> Parcel | None:
        server = line.server.number
        if self._left[server][unit]:
            return None
        span = self.layout.parts[server].units[unit]
        if line.sees_arena:
            self._slot.readers.add(server)
            return Parcel(span.size, place=self._memory.place(self._slot, server, span.start))
        if self._codec is not None and self._encoded:
            blocks = self.layout.parts[server].blocks[span.first : span.last]
            encoded = joined_blocks([self._encoded.get(block) for block in blocks])
            if encoded is not None:
                return Parcel(span.size, data=encoded.data, codec=self._codec.text, lengths=encoded.lengths)
        return Parcel(span.size, data=self._memory.view(self._slot, server, span.start, span.stop))

    def over(self, *, is_void: bool) -> None:
        """The script's thread has finished with this push. No server reads a void push. The lock is held."""
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
        """Blocks of a tensor on servers of other machines that are not encoded yet. The lock is held."""
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
        """Encode blocks of a tensor, and replace their values in `flat` with what servers will decode."""
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
        """Send the units that this tensor has made whole."""
        is_whole = False
        with self.core.thread.changed:
            for stretch in self.layout.writes[number]:
                self._left[stretch.server][stretch.piece] -= stretch.size
                is_whole |= not self._left[stretch.server][stretch.piece]
            if is_whole and self.is_current:
                self.core.thread.do(self.pump)

    def _value(self, number: int) -> torch.Tensor:
        """The values that were put, already scaled."""
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

    def parcel(self, line: ServerLine, unit: int) -> Parcel | None:
        return self._parcels[line.server.number, unit]
