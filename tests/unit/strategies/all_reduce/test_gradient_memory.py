"""Whose memory a gradient lies in: autograd's own is used as it is, what others can see is copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from shoal.strategies.all_reduce.gradient_memory import GradientLayout

Script = Callable[[], tuple[list[torch.Tensor], Callable[[], Any]]]


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=dtype))


def linear() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    weight, bias, x = parameter(4, 5), parameter(4), torch.randn(3, 5)
    return [weight, bias], lambda: F.linear(x, weight, bias).square().sum().backward()


def one_row() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    weight, x = parameter(1, 5), torch.randn(3, 5)
    return [weight], lambda: F.linear(x, weight).square().sum().backward()


def channels_last() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    layer = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    return [layer.weight], lambda: layer(torch.randn(2, 3, 8, 8)).sum().backward()


def embedding() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    table = nn.Embedding(10, 4)
    return [table.weight], lambda: table(torch.tensor([1, 2])).square().sum().backward()


def sliced() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    """Both gradients are slices of one tensor."""
    first, second = parameter(4), parameter(4)
    return [first, second], lambda: torch.cat([first, second]).square().sum().backward()


def given() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    """The gradient is a view of a tensor that the script holds."""
    weight, theirs = parameter(4), torch.ones(4)
    return [weight], lambda: (weight.view(4).backward(theirs), theirs)[1]


def with_graph() -> tuple[list[torch.Tensor], Callable[[], Any]]:
    weight = parameter(4)
    return [weight], lambda: (weight**3).sum().backward(create_graph=True)


def taken(script: Script) -> tuple[list[tuple[torch.Tensor, int]], Any]:
    """What is made of each gradient when it comes, with the address that it came in; and what the script holds."""
    found: list[tuple[torch.Tensor, int]] = []
    parameters, backward = script()

    def after(this: torch.Tensor) -> None:
        assert this.grad is not None
        address, gradient = this.grad.data_ptr(), this.grad
        this.grad = None
        found.append((GradientLayout(this).own(gradient), address))

    for each in parameters:
        each.register_post_accumulate_grad_hook(after)
    return found, backward()


@pytest.mark.parametrize("script", [linear, one_row, channels_last, embedding])
def test_a_gradient_that_autograd_made_is_not_copied(script: Script) -> None:
    found, _ = taken(script)
    assert found and all(own.data_ptr() == address for own, address in found)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("script", [sliced, given, with_graph])
def test_a_gradient_that_others_can_see_is_copied(script: Script) -> None:
    found, held = taken(script)
    assert found and all(own.data_ptr() != address for own, address in found)
    for own, _ in found:
        assert not own.requires_grad
        own.zero_()
    assert held is None or torch.equal(held, torch.ones(4))


def test_the_layout_is_that_of_the_parameter_whatever_the_gradients_is() -> None:
    weight = parameter(2, 3, 4, 4).detach().to(memory_format=torch.channels_last)
    layout, gradient = GradientLayout(weight), torch.randn(2, 3, 4, 4)
    own = layout.own(gradient)
    assert own.stride() == weight.stride() and torch.equal(own, gradient)
    assert torch.equal(layout.flat(own), gradient.permute(0, 2, 3, 1).reshape(-1))
    assert layout.zeros().stride() == weight.stride()


@pytest.mark.parametrize(
    "gradient",
    [
        torch.ones(1).expand(3, 4),
        torch.arange(24.0).view(3, 8)[:, ::2],
        torch.arange(12.0).view(4, 3).t(),
        torch.arange(12.0, dtype=torch.float64).view(3, 4),
    ],
    ids=["expanded", "strided", "transposed", "other dtype"],
)
def test_odd_gradients_become_rows_of_their_own(gradient: torch.Tensor) -> None:
    layout = GradientLayout(parameter(3, 4))
    own = layout.own(gradient)
    assert own.is_contiguous() and own.dtype == torch.float32 and own.data_ptr() != gradient.data_ptr()
    assert torch.equal(own, gradient.float())
    assert torch.equal(layout.flat(own), gradient.float().reshape(-1))


def test_a_conjugated_gradient_is_written_out() -> None:
    gradient = torch.randn(3, dtype=torch.complex64).conj()
    layout = GradientLayout(parameter(3, dtype=torch.complex64))
    assert torch.equal(layout.flat(layout.own(gradient)), gradient.resolve_conj())


def test_a_parameter_with_gaps_gets_a_gradient_without() -> None:
    layout = GradientLayout(torch.randn(3, 8)[:, ::2])
    assert layout.zeros().stride() == (4, 1)
    assert layout.flat(layout.zeros()).shape == (12,)


def test_a_parameter_without_elements_has_an_empty_gradient() -> None:
    layout = GradientLayout(torch.empty(0, 5))
    assert layout.flat(layout.zeros()).shape == (0,)
