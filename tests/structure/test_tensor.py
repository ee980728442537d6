"""One tensor at a time: the entry of `act` to the last bit, from what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramsym import GroupElement, ParameterSymmetry, Space, act, act_tensor, find_symmetry
from paramsym.algebra import GeneralLinear, Orthogonal, Scaling
from paramsym.structure.axes import parse_axis
from paramsym.structure.needs import steps
from paramsym.structure.shift import Factor, Shift, Term, Window
from tests.tracing.zoo import ZOO, build

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@cache
def case(name: str) -> tuple[ParameterSymmetry, dict[str, torch.Tensor]]:
    model, inputs = build(name)
    return find_symmetry(model, inputs, check=False), dict(model.state_dict())


def assert_streams(
    symmetry: ParameterSymmetry, g: GroupElement, state: Mapping[str, torch.Tensor]
) -> int:
    """Every tensor from its needs alone is that of `act`; how many needed others."""
    moved, together = act(symmetry, g, state), 0
    for name in state:
        wanted = symmetry.needs(name, g)
        assert wanted[0] == symmetry.ties.get(name, name)
        assert {*wanted} <= {*symmetry.needs(name)}
        alone = act_tensor(symmetry, g, name, {n: state[n] for n in wanted})
        assert torch.equal(alone, moved[name]) and alone.stride() == moved[name].stride()
        assert alone.dtype == moved[name].dtype
        together += len(wanted) > 1
        for left_out in wanted[1:]:
            given = {n: state[n] for n in wanted if n != left_out}
            with pytest.raises(ValueError, match=f"'{left_out}' is missing among"):
                act_tensor(symmetry, g, name, given)
    return together


@pytest.mark.parametrize("name", ZOO)
def test_streaming_is_act_to_the_last_bit(name: str) -> None:
    symmetry, state = case(name)
    generator = torch.Generator().manual_seed(0)
    g, h = (symmetry.sample(generator, 0.5) for _ in range(2))
    words = {"one": g, "product": g @ h, "undone": ~g @ h}
    counts = {key: assert_streams(symmetry, word, state) for key, word in words.items()}
    read = symmetry.frame_parameters or any(shift.reads(n) for shift in symmetry.shifts
                                            for n in shift.parameters)  # fmt: skip
    assert all(bool(count) <= bool(read) for count in counts.values())
    if symmetry.frame_parameters:
        assert all(counts.values())


def test_tied_names_stand_for_one_tensor() -> None:
    symmetry, state = case("GPT-2")
    g = symmetry.sample(torch.Generator().manual_seed(0))
    ((alias, name),) = symmetry.ties.items()
    assert symmetry.needs(alias, g) == symmetry.needs(name, g)
    found = [act_tensor(symmetry, g, n, {given: state[name]}) for n in (alias, name)
             for given in (alias, name)]  # fmt: skip
    assert all(torch.equal(tensor, found[0]) for tensor in found)
    assert not torch.equal(found[0], state[name])


def chain() -> ParameterSymmetry:
    """w acts in the frame of g; a slide of g reads b, and a slide of b reads c."""
    types = {"w": "r[g]*, 3", "g": "4", "b": "s", "c": "4"}
    whole = {n: Window(n, "i", (4,), (1,)) for n in "gbc"}
    shifts = (
        Shift("g:b", "slides", "i", (4,), (Term(whole["g"], factors=(Factor(whole["b"]),)),)),
        Shift("b:c", "slides", "i", (4,), (Term(whole["b"], factors=(Factor(whole["c"]),)),)),
        Shift("c", "slides", "i", (4,), (Term(whole["c"]),)),
    )
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    spaces = {"r": Space("r", GeneralLinear(4)), "s": Space("s", Scaling(4))}
    return ParameterSymmetry(spaces, signature, shifts)


def test_needs_are_closed_under_what_earlier_parts_have_moved() -> None:
    symmetry = chain()
    g = symmetry.sample(torch.Generator().manual_seed(0))
    (values, gb, bc, c) = (GroupElement(symmetry, (part,)) for part in g.parts)
    assert symmetry.needs("w", values) == ("w", "g")
    assert symmetry.needs("w", gb) == ("w",)
    assert symmetry.needs("w", gb @ values) == ("w", "g")  # w moves before g does
    assert symmetry.needs("w", values @ gb) == ("w", "g", "b")
    assert symmetry.needs("w", values @ gb @ bc) == ("w", "g", "b", "c")
    assert symmetry.needs("w", values @ bc @ gb) == ("w", "g", "b")  # b is read before it moves
    assert {*symmetry.needs("w", values @ gb @ bc @ c)} == {*symmetry.needs("w")} == {*"wgbc"}
    assert symmetry.needs("c", values @ gb @ bc @ c) == symmetry.needs("c") == ("c",)
    assert symmetry.needs("no such name", g) == symmetry.needs("no such name") == ("no such name",)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8), st.integers(0, 99))
def test_any_word_streams(letters: list[tuple[int, bool]], seed: int) -> None:
    symmetry, generator = chain(), torch.Generator().manual_seed(seed)
    word = symmetry.identity()
    for k, inverse in letters:
        one = GroupElement(symmetry, (symmetry.sample(generator).parts[k],))
        word = (~one if inverse else one) @ word
    state = {n: torch.rand(symmetry.shape(n), generator=generator).double() + 0.5 for n in "wgbc"}
    assert_streams(symmetry, word, state)


def test_what_does_not_fit_is_refused() -> None:
    symmetry = chain()
    g = symmetry.sample(torch.Generator().manual_seed(0), only="r")
    state = {n: torch.rand(symmetry.shape(n)) + 0.5 for n in "wgbc"}
    with pytest.raises(ValueError, match=r"'g' has shape \(5,\).*needs \(4,\)"):
        act_tensor(symmetry, g, "w", {**state, "g": torch.rand(5)})
    with pytest.raises(ValueError, match=r"needs\('w', element\) lists"):
        act_tensor(symmetry, g, "w", {})
    other = ParameterSymmetry({"q": Space("q", Scaling(4))}, {"x": (parse_axis("q"),)})
    with pytest.raises(ValueError, match="the element belongs to another symmetry"):
        act_tensor(symmetry, other.sample(torch.Generator()), "w", state)
    assert act_tensor(symmetry, g, "b", {"b": state["b"]}) is state["b"]  # nothing moves it


def llama_like(layers: int) -> ParameterSymmetry:
    """The types of a Llama: a rotating stream in frames, heads, gates, gains that scale."""
    types = {"embed": "100, residual"}
    spaces = {"residual": Space("residual", Orthogonal(8))}
    for k in range(layers):
        gate = f"l{k}.h"
        frame = {n: f"residual[l{k}.{n}]*" for n in ("ln1", "ln2")}
        spaces |= {s: Space(s, Scaling(n)) for s, n in ((f"l{k}.q", 4), (f"l{k}.v", 4), (gate, 12))}
        types |= {
            f"l{k}.ln1": "8", f"l{k}.q": f"l{k}.q, {frame['ln1']}",
            f"l{k}.k": f"l{k}.q*, {frame['ln1']}",
            f"l{k}.v": f"l{k}.v, {frame['ln1']}", f"l{k}.o": f"residual, l{k}.v*", f"l{k}.ln2": "8",
            f"l{k}.gate": f"12, {frame['ln2']}", f"l{k}.up": f"{gate}, {frame['ln2']}",
            f"l{k}.down": f"residual, {gate}*",
        }  # fmt: skip
    signature = {n: tuple(map(parse_axis, t.split(", "))) for n, t in types.items()}
    return ParameterSymmetry(spaces, signature)


def test_the_work_for_one_tensor_does_not_grow_with_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted in blocks and movers that are looked at, not in seconds."""
    seen = []
    for layers in (3, 30):
        symmetry = llama_like(layers)
        g = symmetry.sample(torch.Generator().manual_seed(0))
        looked: list[str] = []

        class Counted(dict):
            def get(self, key, default=None, looked=looked):  # noqa: ANN001
                looked.append(key)
                return super().get(key, default)

        monkeypatch.setitem(symmetry.__dict__, "blocks", Counted(symmetry.blocks))
        monkeypatch.setitem(symmetry.__dict__, "movers", Counted(symmetry.movers))
        steps(symmetry, g, "l1.up")
        seen.append(len(looked))
    assert seen[0] == seen[1] > 0
