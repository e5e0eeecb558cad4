"""A captured state is the state at that moment, whatever training does next."""

from __future__ import annotations

import threading

import torch

from shoal.checkpoint.parts.capture import SMALL, UNIT, Capture, CaptureMemory, NamedState

SIZE = SMALL // 4 + 1  # floats that are not copied at once


def state_of(*tensors: torch.Tensor, steady: tuple[str, ...] = ()) -> NamedState:
    return NamedState([f"t{number}" for number in range(len(tensors))], list(tensors), steady)


def tensors_in(capture: Capture, state: NamedState) -> dict[str, torch.Tensor]:
    """By key in the file."""
    return {
        piece.stored.key: torch.frombuffer(bytearray(capture.data(piece)), dtype=state.tensors[piece.tensor].dtype)
        .reshape(piece.shape)
        .clone()
        for piece in capture.pieces
        if piece.stored.size
    }


def test_parts_of_all_workers_make_the_whole_state() -> None:
    state = state_of(
        torch.randn(700, 300),
        torch.randn(300, 700).t(),  # not contiguous
        torch.tensor(3.5),
        torch.randn(5, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.empty(0, 4),
        torch.tensor([True, False]),
    )
    found: dict[str, torch.Tensor] = {}
    for rank in range(3):
        capture = Capture(state, CaptureMemory(), rank=rank, world_size=3)
        capture.copy_rest()
        found |= tensors_in(capture, state)
    for number in range(2):
        pieces = sorted(
            (int(key.split("@")[1]), piece) for key, piece in found.items() if key.startswith(f"t{number}@")
        )
        assert torch.equal(torch.cat([piece for _, piece in pieces]), state.tensors[number])
    for number in (2, 3, 4, 6):
        assert torch.equal(found[f"t{number}"], state.tensors[number].resolve_conj())


def test_what_may_change_at_any_time_is_copied_at_once() -> None:
    buffer, parameter = torch.zeros(4), torch.zeros(SIZE)
    state = state_of(buffer, parameter, steady=("t1",))
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    buffer.fill_(7.0)
    capture.copy_rest()
    assert tensors_in(capture, state)["t0"].tolist() == [0.0] * 4
    assert capture.torn is None


def test_an_update_waits_for_the_copy() -> None:
    parameter = torch.zeros(SIZE)
    state = state_of(parameter, steady=("t0",))
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    assert not capture.is_settled.is_set()
    updating = threading.Thread(target=lambda: (capture.wait(), parameter.fill_(7.0)))
    updating.start()
    capture.copy_rest()
    updating.join()
    assert tensors_in(capture, state)["t0"].sum() == 0.0
    assert parameter.sum() == 7.0 * SIZE


def test_a_parameter_changed_behind_our_back_tears_the_capture() -> None:
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    state = state_of(parameter.detach(), steady=("t0",))
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    with torch.no_grad():
        parameter.mul_(2.0)
    capture.settle()
    assert capture.torn == "t0"


def test_names_that_are_alike_get_keys_of_their_own() -> None:
    state = NamedState(["a", "a"], [torch.zeros(2), torch.ones(2)], ())
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    assert sorted(piece.stored.key for piece in capture.pieces) == ["a", "a#2"]


def test_memory_is_reused() -> None:
    staging = CaptureMemory()
    first = staging.of_size(1000)
    assert staging.of_size(800).base is first.base
    assert staging.of_size(2000).nbytes == 2000


def test_a_small_state_is_copied_at_once() -> None:
    parameter = torch.zeros(SIZE - 1)
    state = state_of(parameter, steady=("t0",))
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    assert capture.is_settled.is_set()
    parameter.fill_(1.0)
    assert tensors_in(capture, state)["t0"].sum() == 0.0


def test_who_waits_helps_and_every_byte_is_copied_once() -> None:
    parameter = torch.arange(UNIT, dtype=torch.float32)  # four units
    state = state_of(parameter, torch.randn(3000, 700).t(), steady=("t0", "t1"))
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    threads = [threading.Thread(target=capture.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    capture.wait()
    for thread in threads:
        thread.join()
    found = tensors_in(capture, state)
    assert torch.equal(found["t0"], parameter)
    assert torch.equal(found["t1"], state.tensors[1])
