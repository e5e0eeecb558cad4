"""The plan of gradient buckets: each parameter in one slot, one dtype per bucket, later parameters first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.strategies.buckets import ParameterSize, plan_buckets

SIZES = st.lists(
    st.builds(
        ParameterSize,
        dtype=st.sampled_from(["float32", "float64"]),
        elements=st.integers(0, 5000),
        element_bytes=st.sampled_from([4, 8]),
    ),
    max_size=40,
)


@given(SIZES, st.integers(1, 100_000))
def test_every_parameter_has_one_slot_of_its_size(sizes: list[ParameterSize], bucket_bytes: int) -> None:
    plans = plan_buckets(sizes, bucket_bytes=bucket_bytes)
    slots = [slot for plan in plans for slot in plan.slots]
    assert sorted(slot.parameter for slot in slots) == list(range(len(sizes)))
    for plan in plans:
        assert {sizes[slot.parameter].dtype for slot in plan.slots} == {plan.dtype}
        end = 0
        for slot in plan.slots:
            assert slot.offset == end and slot.elements == sizes[slot.parameter].elements
            end += slot.elements
        assert plan.flags_at == end and plan.elements == end + len(plan.slots)


@given(SIZES, st.integers(1, 100_000))
def test_a_bucket_ends_as_soon_as_it_is_full(sizes: list[ParameterSize], bucket_bytes: int) -> None:
    for plan in plan_buckets(sizes, bucket_bytes=bucket_bytes):
        without_last = [sizes[slot.parameter] for slot in plan.slots[:-1]]
        assert sum(size.elements * size.element_bytes for size in without_last) < bucket_bytes


@given(SIZES, st.integers(1, 100_000))
def test_the_order_follows_backward(sizes: list[ParameterSize], bucket_bytes: int) -> None:
    for plan in plan_buckets(sizes, bucket_bytes=bucket_bytes):
        numbers = [slot.parameter for slot in plan.slots]
        assert numbers == sorted(numbers, reverse=True)
    same = [ParameterSize("float32", size.elements, 4) for size in sizes]
    order = [slot.parameter for plan in plan_buckets(same, bucket_bytes=bucket_bytes) for slot in plan.slots]
    assert order == list(reversed(range(len(same))))
