"""Numbers that cannot carry an element are refused; whatever can be indexed can be permuted."""

from __future__ import annotations

import pytest
import torch

from paramsym import GroupElement, ParameterSymmetry, Space, act
from paramsym.algebra import (
    ComplexScaling,
    Element,
    GeneralLinear,
    Group,
    Monomial,
    Permutation,
    Signs,
    Wreath,
)
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import Slide
from paramsym.structure.shift import Factor, Shift, Term, Window

INTEGERS = [torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
SMALL = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def written(types: dict[str, str], group: Group, **more) -> ParameterSymmetry:
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    return ParameterSymmetry({"h": Space("h", group)}, signature, **more)


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.int64:  # not all of them are numbers of float64
        return torch.randint(-(1 << 62), 1 << 62, shape, generator=generator)
    return torch.randint(0, 7, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *SMALL, *FLOATS, torch.complex64], ids=str)
@pytest.mark.parametrize("group", [Permutation(4), Wreath(Permutation(2), 2)], ids=str)
def test_anything_is_permuted_exactly(dtype: torch.dtype, group: Group) -> None:
    symmetry = written({"w": "h, 3", "v": "h*"}, group)
    g = symmetry.sample(torch.Generator().manual_seed(3))
    order = group.matrix(g["h"], torch.float64).argmax(1)  # type: ignore[arg-type]
    state = {"w": filled(dtype, 4, 3), "v": filled(dtype, 4)}
    moved = act(symmetry, g, state)
    for name, tensor in state.items():
        assert moved[name].dtype == dtype and torch.equal(moved[name], tensor[order])
    assert not torch.equal(order, torch.arange(4))


@pytest.mark.parametrize("dtype", [*INTEGERS, *SMALL], ids=str)
@pytest.mark.parametrize(
    "group", [Monomial(4), Signs(4), GeneralLinear(4), ComplexScaling(4), Wreath(Monomial(2), 2)],
    ids=str,
)  # fmt: skip
def test_scales_and_matrices_need_floating_point(dtype: torch.dtype, group: Group) -> None:
    symmetry = written({"w": "3, h*"}, group)
    g = symmetry.sample(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError) as error:
        act(symmetry, g, {"w": filled(dtype, 3, 4)})
    text = str(error.value)
    assert f"'w' (of the type 3, h*) has dtype {dtype}" in text  # where and what came
    assert f"'h' by {group}" in text and "Expected float16, bfloat16, float32 or float64" in text
    assert "Convert the tensor first (params['w'].to(…)" in text  # what to do
    for known in FLOATS:
        act(symmetry, g, {"w": filled(known, 3, 4)})


def test_the_power_zero_keeps_the_order_alone() -> None:
    symmetry = written({"w": "h^0", "v": "h"}, Monomial(4))
    g = symmetry.sample(torch.Generator().manual_seed(3))
    state = {"w": filled(torch.int64, 4), "v": torch.ones(4)}
    assert torch.equal(act(symmetry, g, state)["w"], state["w"][g["h"].order])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="'v'.*torch.int64"):
        act(symmetry, g, {**state, "v": filled(torch.int64, 4)})


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_frames_and_origins_are_refused() -> None:
    symmetry = written({"w": "h, 3"}, Permutation(4))
    g = symmetry.sample(torch.Generator().manual_seed(3))
    scales = torch.rand(4) + 0.5
    quantised = torch.quantize_per_channel(
        torch.randn(4, 3), scales, torch.zeros(4), 0, torch.qint8
    )
    with pytest.raises(ValueError, match=r"'w'.*torch.qint8.*dequantize"):
        act(symmetry, g, {"w": quantised})  # its scales would stay behind
    framed = written({"w": "h[g], 3", "g": "4"}, Permutation(4))
    gain = torch.rand(4) + 0.5
    act(framed, g, {"w": torch.ones(4, 3), "g": gain})
    with pytest.raises(ValueError, match=r"'w'.*torch.int32"):
        act(framed, g, {"w": filled(torch.int32, 4, 3), "g": gain})
    origin = written({"w": "h, 3"}, Permutation(4), offsets={"w": 1.0})
    act(origin, g, {"w": torch.ones(4, 3)})
    with pytest.raises(ValueError, match=r"'w'.*torch.int32"):
        act(origin, g, {"w": filled(torch.int32, 4, 3)})


def test_complex_factors_need_complex_numbers() -> None:
    symmetry = written({"w": "h, 3"}, GeneralLinear(4))
    matrix = torch.eye(4, dtype=torch.complex128) * 1j
    g = GroupElement(symmetry, ({"h": Element(matrix=matrix)},))
    with pytest.raises(ValueError, match=r"'w'.*torch.float64.*complex factors of 'h'.*complex64"):
        act(symmetry, g, {"w": torch.ones(4, 3, dtype=torch.float64)})
    moved = act(symmetry, g, {"w": torch.ones(4, 3, dtype=torch.complex128)})
    assert torch.equal(moved["w"], torch.full((4, 3), 1j, dtype=torch.complex128))
    pairs = written({"w": "h, 3"}, ComplexScaling(4))  # on pairs of real coordinates they are real
    act(pairs, pairs.sample(torch.Generator()), {"w": torch.ones(4, 3, dtype=torch.float64)})


def test_shifts_need_numbers_as_well() -> None:
    whole = {n: Window(n, "i", (4,), (1,)) for n in "ab"}
    shift = Shift("slide", "", "i", (4,), (Term(whole["a"], factors=(Factor(whole["b"]),)),))
    symmetry = ParameterSymmetry({}, {n: (parse_axis("4"),) for n in "ab"}, (shift,))
    g = symmetry.sample(torch.Generator().manual_seed(0))
    (slide,) = g.parts
    assert isinstance(slide, Slide)
    state = {n: torch.ones(4) for n in "ab"}
    torch.testing.assert_close(act(symmetry, g, state)["a"], 1 + slide.offset.float())
    for dtype in (*INTEGERS, *SMALL):
        with pytest.raises(ValueError, match=f"'a' has dtype {dtype}.*the shift 'slide'"):
            act(symmetry, g, {**state, "a": filled(dtype, 4)})
    with pytest.raises(ValueError, match="'a' has dtype torch.float32.*complex shift"):
        act(symmetry, g, {**state, "b": torch.ones(4, dtype=torch.complex64)})


@pytest.mark.parametrize("base", [GeneralLinear(3), ComplexScaling(4), Monomial(3)], ids=str)
def test_copies_of_a_wreath_product_move_on_either_side(base: Group) -> None:
    group = Wreath(base, 2)
    n = group.size
    symmetry = written({"w": "h, 5", "v": "5, h*", "u": "h[g]*, 2", "g": str(n)}, group)
    generator = torch.Generator().manual_seed(0)
    g, h = symmetry.sample(generator), symmetry.sample(generator)
    state = {m: torch.rand(symmetry.shape(m), generator=generator).double() + 0.5
             for m in symmetry.signature}  # fmt: skip
    moved = act(symmetry, g, state)
    matrix = group.matrix(g["h"], torch.float64)  # type: ignore[arg-type]
    inverse = torch.linalg.inv(matrix)
    gain = state["g"][:, None]
    torch.testing.assert_close(moved["w"], matrix @ state["w"])
    torch.testing.assert_close(moved["v"], state["v"] @ inverse)
    torch.testing.assert_close(moved["u"], inverse.mT @ (state["u"] * gain) / gain)
    wrong = inverse.mT @ (state["u"] / gain) * gain  # the frame the other way round
    assert (moved["u"] - wrong).abs().max() > 1e-3
    one_by_one = act(symmetry, h, moved)
    for name, tensor in act(symmetry, h @ g, state).items():
        torch.testing.assert_close(tensor, one_by_one[name])
