"""The first difference between two scripts: found where there is one, named with both values, within bounds."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.terms import (
    CHUNK_BYTES,
    LONGEST_TEXT,
    MOST_PACKED,
    SAMPLE,
    Made,
    SampleHashes,
    ScriptCall,
    call_in,
    call_missed,
    calls_apart,
    changed_sample,
    chunk,
    combined,
    difference,
    named,
)

TEXTS = st.text(max_size=300)
TERMS = st.lists(st.tuples(TEXTS, TEXTS), max_size=6)
HASHES = st.dictionaries(st.integers(0, 3), st.integers(-2, 2), max_size=4).map(lambda found: tuple(found.items()))
CALLS = st.builds(ScriptCall.of, st.sampled_from(("model", "optimizer", "loop", "mean")), TERMS, HASHES)
SCRIPTS = st.lists(CALLS, max_size=6)


@given(SCRIPTS)
def test_a_script_does_not_differ_from_itself_nor_from_its_beginning(calls: list[ScriptCall]) -> None:
    assert difference(calls, list(calls)) is None
    for length in range(len(calls)):
        assert difference(calls[:length], calls) is None
        assert difference(calls, calls[:length]) is None


@given(SCRIPTS, SCRIPTS)
def test_both_sides_find_the_same_difference(first: list[ScriptCall], second: list[ScriptCall]) -> None:
    one, other = difference(first, second), difference(second, first)
    if one is None or other is None:
        assert one is other is None
        assert all(a.is_like(b) for a, b in zip(first, second, strict=False))
    else:
        assert (one.first, one.second) == (other.second, other.first)


@given(SCRIPTS, st.data())
def test_another_value_anywhere_is_named_with_both(calls: list[ScriptCall], data: st.DataObject) -> None:
    terms = [("batch size", "4"), ("number of samples", "200"), ("accumulate", "1")]
    place = data.draw(st.integers(0, len(calls)))
    which = data.draw(st.integers(0, 2))
    value = data.draw(
        st.text(max_size=LONGEST_TEXT).filter(lambda text: text.isprintable() and text != terms[which][1])
    )
    changed = [*terms[:which], (terms[which][0], value), *terms[which + 1 :]]
    first = [*calls[:place], ScriptCall.of("loop", terms), *calls[place:]]
    second = [*calls[:place], ScriptCall.of("loop", changed), *calls[place:]]
    found = difference(first, second)
    assert found is not None
    assert (found.first, found.second) == (terms[which][1], value)
    assert found.subject == f"{named(first, place)}: {terms[which][0]}"
    assert difference(first, second, start=place + 1) is None


@given(HASHES, HASHES)
def test_samples_differ_where_both_know_them_and_hashes_differ(first: SampleHashes, second: SampleHashes) -> None:
    terms = [("batch size", "4")]
    one, other = ScriptCall.of("loop", terms, first), ScriptCall.of("loop", terms, second)
    differ = {index for index, number in first if dict(second).get(index, number) != number}
    found = difference([one], [other])
    assert changed_sample(first, second) == changed_sample(second, first) == min(differ, default=None)
    assert one.is_like(other) == (not differ)
    assert combined(b"", one) == combined(b"", other), "what one worker could not hash must not tell them apart"
    assert found is None if not differ else (found is not None and found.term == SAMPLE)
    if found is not None:
        assert found.subject == f"loop 1: sample {min(differ)} of the data"


def test_a_difference_reads_as_one_sentence() -> None:
    job = [
        ScriptCall.of("model", [("class", "Net")]),
        ScriptCall.of("loop", [("batch size", 4)]),
        ScriptCall.of("loop", [("steps", 9)]),
    ]
    own = [*job[:2], ScriptCall.of("loop", [("steps", 7)])]
    found = difference(job, own)
    assert found is not None
    assert found.text("in the job", "here") == "loop 2: steps is 9 in the job and 7 here"
    other = difference(job, [job[0], ScriptCall.of("mean")])
    assert other is not None
    assert other.text("in the job", "here") == "call 2 of the script is loop 1 in the job and mean 1 here"


def test_the_first_of_thousands_of_tensors_that_differs_is_named_with_both_shapes() -> None:
    tensors = [(f"parameter 'layers.{number}.weight'", "[4096, 4096] float32") for number in range(20_000)]
    changed = [*tensors[:12_345], (tensors[12_345][0], "[4096, 8192] float32"), *tensors[12_346:]]
    job, own = ScriptCall.of("model", tensors), ScriptCall.of("model", changed)
    assert len(msgspec.msgpack.encode(job)) < MOST_PACKED + 200
    found = difference([job], [own])
    assert found is not None
    text = found.text("in the job", "here")
    assert text == (
        "model 1: parameter 'layers.12345.weight' is [4096, 4096] float32 in the job and [4096, 8192] float32 here"
    )


def test_another_name_and_a_missing_tensor_are_told_too() -> None:
    job = ScriptCall.of("model", [("parameter 'a'", "[3] float32"), ("parameter 'b'", "[4] float32")])
    renamed = difference(
        [job], [ScriptCall.of("model", [("parameter 'a'", "[3] float32"), ("parameter 'c'", "[4] float32")])]
    )
    assert renamed is not None
    assert (renamed.first, renamed.second) == ("parameter 'b' [4] float32", "parameter 'c' [4] float32")
    fewer = difference([job], [ScriptCall.of("model", [("parameter 'a'", "[3] float32")])])
    assert fewer is not None and fewer.second == "nothing more"


def test_terms_that_are_too_many_to_travel_still_differ_by_their_digest() -> None:
    many = [(f"{number * 7919:x}", f"{number * 104_729:x}") for number in range(60_000)]
    job, own = ScriptCall.of("model", many), ScriptCall.of("model", many[:-1])
    assert job.packed == b"" and job.terms is None
    found = difference([job], [own])
    assert found is not None and found.first == job.digest.hex() and found.second == own.digest.hex()


@given(st.text(min_size=LONGEST_TEXT + 1, max_size=2000), st.text(min_size=LONGEST_TEXT + 1, max_size=2000))
def test_long_values_are_cut_and_still_tell_each_other_apart(first: str, second: str) -> None:
    one, other = ScriptCall.of("loop", [("a", first)]), ScriptCall.of("loop", [("a", second)])
    assert one.is_like(other) == (first == second)
    terms = one.terms
    assert terms is not None and len(terms[0][1]) < LONGEST_TEXT + 80


@given(st.binary(max_size=200))
def test_bytes_that_are_no_terms_are_refused(data: bytes) -> None:
    for packed in (data, zlib.compress(data)):
        call = ScriptCall("loop", b"0" * 16, packed or b"x")
        try:
            terms = call.terms
        except WireError:
            continue
        assert isinstance(terms, tuple)


def test_a_digest_that_does_not_belong_to_its_terms_is_refused() -> None:
    call = ScriptCall.of("loop", [("batch size", 4)])
    with pytest.raises(WireError, match="digest"):
        difference([call], [ScriptCall("loop", b"other", call.packed)])


@given(st.lists(st.integers(0, 400_000), max_size=20), st.integers(0, 20))
def test_chunks_cover_all_calls_in_order_and_are_small(sizes: list[int], start: int) -> None:
    calls = [Made(ScriptCall("mean", bytes([number]), b""), b"r" * size) for number, size in enumerate(sizes)]
    first, told = start, list[Made]()
    while part := chunk(calls, first):
        assert len(part) == 1 or sum(made.size for made in part) <= CHUNK_BYTES
        told += part
        first += len(part)
    assert told == calls[start:]


@given(SCRIPTS, SCRIPTS)
def test_digests_of_whole_scripts_are_equal_where_all_terms_are(
    first: list[ScriptCall], second: list[ScriptCall]
) -> None:
    first, second = ([msgspec.structs.replace(call, samples=()) for call in calls] for calls in (first, second))

    def digest(calls: list[ScriptCall]) -> bytes:
        total = b""
        for call in calls:
            total = combined(total, call)
        return total

    is_same = len(first) == len(second) and difference(first, second) is None
    assert (digest(first) == digest(second)) == is_same


EVALUATING = "step 3, evaluation, call 1, scores accuracy"


@pytest.mark.parametrize(
    ("label", "call"),
    [
        (EVALUATING, "run.evaluate"),
        ("evaluation, meeting 4", "run.evaluate"),
        ("step 3, mean, call 2", "run.mean"),
        ("mean, meeting 4", "run.mean"),
        ("saving", "run.save"),
        ("saving 'best', comparison", "run.save"),
        ("saving after step 3, buffers 0", "run.save"),
        ("weights of model 2, fc.bias", "run.model"),
        ("start of loop 2", "run.batches"),
        ("step 3, exchange 0 of model 1, gradients 0", ""),
        ("step 3, mean, tensor 0", ""),  # of a strategy
        ("end of loop 1 after 17 steps", ""),
        ("step 3, no backward", ""),
    ],
)
def test_an_operation_belongs_to_a_call_of_the_script(label: str, call: str) -> None:
    assert call_in(label) == call


@pytest.mark.parametrize(
    ("other", "instead"),
    [
        ("step 4, exchange 0 of model 1, gradients 0", "had gone on to the gradients of step 4"),
        ("end of loop 1 after 17 steps", "had come to the end of loop 1"),
        ("end of the script", "had come to the end of the script"),
        ("start of loop 2, data", "had gone on to run.batches"),
        ("start of epoch 2, meeting 5", "had gone on to run.epochs"),
        ("step 4, no backward", "was in 'step 4, no backward'"),
    ],
)
def test_both_workers_say_the_same_of_a_call_that_one_missed(other: str, instead: str) -> None:
    said = call_missed("run.evaluate", by=0, missed=1, instead=instead)
    assert said.startswith("worker 0 called run.evaluate and worker 1 did not; every worker must")
    assert calls_apart((0, EVALUATING), (1, other)) == calls_apart((1, other), (0, EVALUATING)) == said
    turned = calls_apart((1, EVALUATING), (0, other))
    assert turned == call_missed("run.evaluate", by=1, missed=0, instead=instead)


def test_two_different_calls_are_both_named() -> None:
    said = calls_apart((0, EVALUATING), (3, "step 3, mean, call 1"))
    assert said is not None
    assert said.startswith("worker 0 called run.evaluate and worker 3 called run.mean; every worker must")


def test_a_batch_that_one_worker_skips_is_named_alike_on_both() -> None:
    gradients, skipped = "step 4, exchange 0 of model 1", "step 4, no backward"
    said = calls_apart((0, gradients), (1, skipped))
    assert said is not None
    assert said.startswith("worker 1 took no backward() in step 4 and worker 0 did; skip a batch on every worker or")
    assert said == calls_apart((1, skipped), (0, gradients))
    turned = calls_apart((0, skipped), (1, gradients))
    assert turned is not None
    assert turned.startswith("worker 0 took no backward() in step 4 and worker 1 did")
    assert calls_apart((0, "step 5, exchange 0 of model 1"), (1, skipped)) is None


def test_other_operations_are_no_calls_apart() -> None:
    gradients = "step 4, exchange 0 of model 1"
    assert calls_apart((0, gradients), (1, "end of loop 1 after 3 steps")) is None
    assert calls_apart((0, EVALUATING), (1, EVALUATING)) is None
