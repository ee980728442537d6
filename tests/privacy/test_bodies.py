"""Bodies are read whole or refused, before anything of the size that they claim is made."""

from __future__ import annotations

import random
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from paramsym.privacy.inference import Message, Refusal
from paramsym.privacy.inference.bodies import DTYPES, Limits, bytes_of, read, write
from paramsym.privacy.inference.messages import Layout, Slot

from .bodies_of_strangers import at_random, by_hand, packed

QUERY = Layout(
    "a query",
    {"inputs/x": Slot((None, 6), frozenset({torch.float64}), 4096)},
    {"number": 19},
)
HONEST = write(
    Message({"number": "17"}, {"inputs/x": torch.arange(24, dtype=torch.float64).reshape(4, 6)})
)
OPEN = Layout("anything", {}, others=frozenset(DTYPES.values()))


def test_an_honest_body_is_read_as_it_was_written() -> None:
    message = read(HONEST, QUERY)
    assert message.header == {"number": "17"}
    assert torch.equal(
        message.tensors["inputs/x"], torch.arange(24, dtype=torch.float64).reshape(4, 6)
    )
    message.tensors["inputs/x"].add_(1)  # writable, and not the body's own bytes
    assert read(HONEST, QUERY).tensors["inputs/x"][0, 0] == 0


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=9).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(1, 4), max_size=4),
        ),
        max_size=5,
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_accepted_is_what_the_reference_reads(
    tensors: dict[str, tuple[str, list[int]]], numbers: random.Random
) -> None:
    generator = torch.Generator().manual_seed(numbers.randrange(1 << 30))
    made = {
        name: torch.randint(0, 2, shape, generator=generator).to(DTYPES[dtype])
        for name, (dtype, shape) in tensors.items()
    }
    body = save(made)
    ours, theirs = read(body, OPEN).tensors, load(body)
    assert {*ours} == {*theirs} == {*made}
    assert all(torch.equal(ours[n], t) and ours[n].dtype == t.dtype for n, t in theirs.items())
    if not made:
        return
    for _ in range(20):
        changed = at_random(body, numbers)
        try:
            mine = read(changed, OPEN).tensors
        except Refusal as refusal:
            assert refusal.status in (400, 413, 422)
            continue
        reference = load(changed)  # nothing is taken that the reference refuses
        assert {*mine} == {*reference}
        assert all(torch.equal(mine[n], t) for n, t in reference.items())


@pytest.mark.parametrize(
    ("name", "body"), [*by_hand(HONEST)], ids=[name for name, _ in by_hand(HONEST)]
)
def test_what_no_honest_side_sends_is_refused(name: str, body: bytes) -> None:
    if name.startswith("the words {'number': '") and "more" not in name:
        body = HONEST[:-1]  # which texts are numbers is for the sessions to say
    with pytest.raises(Refusal) as refused:
        read(body, QUERY)
    assert refused.value.status in (400, 413, 422)
    str(refused.value).encode()  # can be sent


@pytest.mark.parametrize("name", ["NaN", "infinity"])
def test_numbers_that_are_not_finite_are_refused(name: str) -> None:
    x = torch.full((2, 6), torch.nan if name == "NaN" else torch.inf, dtype=torch.float64)
    with pytest.raises(Refusal, match="not finite"):
        read(write(Message({"number": "0"}, {"inputs/x": x})), QUERY)


def test_tensors_may_neither_overlap_nor_leave_gaps() -> None:
    one = {"dtype": "U8", "shape": [4]}
    for second in ([0, 4], [2, 6], [5, 9]):
        header = {"a": {**one, "data_offsets": [0, 4]}, "b": {**one, "data_offsets": second}}
        with pytest.raises(Refusal, match="overlap or leave a gap"):
            read(packed(header, b"\1" * max(second)), OPEN)


def test_nothing_is_made_of_the_size_that_a_body_claims() -> None:
    entry = {"dtype": "F64", "shape": [1 << 30, 8], "data_offsets": [0, 1 << 36]}
    bodies = [packed({"__metadata__": {"number": "0"}, "inputs/x": entry}),
              ((1 << 40).to_bytes(8, "little") + b"{")]  # fmt: skip
    tracemalloc.start()
    try:
        for body in bodies:
            with pytest.raises(Refusal):
                read(body, QUERY)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_limits_hold_whatever_is_expected() -> None:
    for limits, said in (
        (Limits(body=len(HONEST) - 1), "bytes came, and at most"),
        (Limits(header=10), "bytes of the header came, and at most 10"),
        (Limits(tensors=0), "1 tensors came, and at most 0"),
        (Limits(axes=1), "2 axes of 'inputs/x' came, and at most 1"),
    ):
        with pytest.raises(Refusal, match=said) as refused:
            read(HONEST, QUERY, limits)
        assert refused.value.status == 413


def test_the_bytes_of_a_layout_bound_every_body_of_it() -> None:
    x = torch.zeros(4096, 6, dtype=torch.float64)
    longest = write(Message({"number": "9" * 19}, {"inputs/x": x}))
    assert len(longest) <= bytes_of(QUERY, Limits()) <= len(longest) + 1024
