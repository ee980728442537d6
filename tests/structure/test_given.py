"""Elements and velocities that users write: read, checked, multiplied, moved, and kept on file.

What `sample` makes is the twin: written down value by value it has to be the same element again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from paramsym import AlgebraElement, GroupElement, ParameterSymmetry, Space, act, find_symmetry
from paramsym.algebra import ComplexScaling, Element, GeneralLinear, SignedPermutation, Wreath
from paramsym.structure import stored
from paramsym.structure.axes import parse_axis
from paramsym.structure.element import Slide
from tests.tracing import zoo

NAMES = [
    "MLP, ReLU", "MLP, squared ReLU", "MLP, tanh", "MLP, identity", "MLP, radial", "convolutions",
    "MultiheadAttention", "LSTM", "GPT-2", "Llama", "Qwen3", "OPT", "T5", "ViT", "ResNet",
]  # fmt: skip

Network = tuple[ParameterSymmetry, dict[str, Tensor]]


def network(name: str) -> Network:
    model, _ = zoo.build(name)
    symmetry = zoo.derived(name)
    return symmetry, dict(model.double().state_dict())


def plain(element: GroupElement) -> dict[str, object]:
    """The values of an element as a user would write them."""
    found: dict[str, object] = {}
    for part in element.parts:
        if isinstance(part, Slide):
            found[part.shift] = part.offset
            continue
        for name, value in part.items():
            given = (value.order, value.diagonal) if None not in value[:2] else None
            alone = next((x for x in value[:3] if x is not None), None)
            if given is not None or alone is not None:
                found[name] = alone if given is None else given
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Equal to rounding: products of matrices of another memory layout round otherwise."""
    return all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-13) for name in one)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_can_be_written_saved_and_read(name: str, tmp_path: Path) -> None:
    symmetry, state = network(name)
    drawn = symmetry.sample(torch.Generator().manual_seed(0))
    moved = act(symmetry, drawn, state)
    written = symmetry.element(plain(drawn))
    assert same(act(symmetry, written, state), moved)
    for element in (written, drawn @ ~drawn @ drawn):
        element.save(tmp_path / "element.safetensors")
        back = GroupElement.load(tmp_path / "element.safetensors", symmetry)
        assert same(act(symmetry, back, state), act(symmetry, element, state))
    assert [*tmp_path.iterdir()] == [tmp_path / "element.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_a_velocity_can_be_written_saved_and_read(name: str, tmp_path: Path) -> None:
    symmetry, state = network(name)
    draw = torch.Generator().manual_seed(0)
    values, given = {}, {}
    for space in symmetry.spaces.values():
        if space.group.dimension:
            batch = [symmetry.spaces[base].size for base in space.over]
            made = space.group.random_algebra(draw, tuple(batch), torch.float64).scaled(0.1)
            values[space.name] = made
            given[space.name] = made.diagonal if made.matrix is None else made.matrix
    drawn = AlgebraElement(symmetry, values, {})
    written = symmetry.velocity(given)
    written.save(tmp_path / "velocity.safetensors")
    back = AlgebraElement.load(tmp_path / "velocity.safetensors", symmetry)
    for velocity in (written, back):
        moved = act(symmetry, velocity.exp(0.3), state)
        assert same(moved, act(symmetry, drawn.exp(0.3), state))


@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_a_product_is_the_product_of_the_values(name: str) -> None:
    symmetry, state = network(name)
    draw = torch.Generator().manual_seed(1)
    g, h = symmetry.sample(draw), symmetry.sample(draw)
    spaces = {n for n, s in symmetry.spaces.items() if s.group.dimension or s.group.log_order}
    clashing = {n for basis, others in symmetry.clashes.items() for n in (basis, *others)}
    word = GroupElement(symmetry, (*h.parts, *g.parts))  # nothing multiplied out
    read = [n for n in spaces - clashing]
    product = symmetry.element({n: word[n] for n in read})
    left = symmetry.element({n: g[n] for n in read})
    right = symmetry.element({n: h[n] for n in read})
    twice = act(symmetry, left, act(symmetry, right, state))
    for key, tensor in act(symmetry, product, state).items():
        torch.testing.assert_close(tensor, twice[key], rtol=1e-9, atol=1e-9)


@pytest.fixture
def rectified() -> tuple[nn.Module, ParameterSymmetry, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    return model, find_symmetry(model, (x,)), x


def test_channel_three_by_two(rectified: tuple[nn.Module, ParameterSymmetry, Tensor]) -> None:
    model, symmetry, x = rectified
    scales = [1, 1, 1, 2.0, 1, 1, 1]
    moved = act(symmetry, symmetry.element(mlp=scales), model.state_dict())
    assert torch.equal(moved["0.weight"][3], 2 * model[0].weight[3])
    assert torch.equal(moved["2.weight"][:, 3], model[2].weight[:, 3] / 2)
    torch.testing.assert_close(torch.func.functional_call(model, moved, (x,)), model(x))
    both = symmetry.element(mlp=([1, 0, 2, 3, 4, 5, 6], scales))
    assert both["mlp"].order.tolist()[:2] == [1, 0] and both["mlp"].diagonal[3] == 2
    assert not symmetry.identity().parts
    assert repr(both) == "GroupElement(1 part moving mlp)"
    assert repr(symmetry.identity()) == "GroupElement(0 parts moving nothing)"
    assert symmetry.identity()["mlp"].order.tolist() == [*range(7)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([-1.0] * 7, "outside the group Monomial"),
        ([0, 1, 1, 2, 3, 4, 5], "outside the group Monomial"),
        ([1.0, 2.0], "shape"),
        ([1, 1, 1, 2, 1, 1, 1], "whole numbers are read as an order"),
        (torch.ones(7, dtype=torch.bool), "dtype torch.bool"),
        (torch.ones(7, dtype=torch.complex128), "dtype torch.complex128"),
        (torch.eye(7), "shape"),
        ([float("nan")] * 7, "outside the group"),
    ],
)
def test_values_outside_the_group_are_refused(rectified, value: object, says: str) -> None:
    _, symmetry, _ = rectified
    with pytest.raises(ValueError, match=says):
        symmetry.element(mlp=value)


def test_an_element_of_another_group_acts_as_its_matrix_does() -> None:
    """A group of matrices reads matrices alone: an order that came as such would move nothing."""
    space = Space("x", GeneralLinear(3))
    symmetry = ParameterSymmetry({"x": space}, {"w": (parse_axis("x"),)})
    order, scales = torch.tensor([2, 0, 1]), torch.tensor([1.0, -2.0, 3.0])
    state = {"w": torch.tensor([5.0, 7.0, 11.0])}
    moved = act(symmetry, symmetry.element({"x": Element(order=order, diagonal=scales)}), state)
    assert moved["w"].tolist() == [11.0, -10.0, 21.0]
    ordered = act(symmetry, symmetry.element({"x": Element(order=order)}), state)
    assert ordered["w"].tolist() == [11.0, 5.0, 7.0]
    signed = ParameterSymmetry({"x": Space("x", SignedPermutation(3))}, symmetry.signature)
    with pytest.raises(ValueError, match="it is a matrix"):
        signed.element({"x": Element(matrix=torch.eye(3)[order])})


def test_names_are_known(rectified: tuple[nn.Module, ParameterSymmetry, Tensor]) -> None:
    _, symmetry, _ = rectified
    with pytest.raises(KeyError, match="neither spaces nor shifts"):
        symmetry.element(hidden=[1.0] * 7)
    with pytest.raises(KeyError, match="neither spaces nor shifts"):
        symmetry.velocity({"hidden": [1.0] * 7})
    with pytest.raises(ValueError, match="velocity"):
        symmetry.velocity(mlp=torch.eye(7))
    with pytest.raises(KeyError, match="0 of the 0 parts"):
        symmetry.identity()["hidden"]


def test_offsets_are_finite_numbers_of_their_shape() -> None:
    symmetry, _ = network("MLP, identity")
    shift = symmetry.shifts[0]
    offset = torch.ones(shift.shape, dtype=torch.float64)
    assert symmetry.element({shift.name: offset}).parts
    for wrong in (offset / 0, offset[None], offset.long()):
        with pytest.raises(ValueError, match="finite real numbers of shape"):
            symmetry.element({shift.name: wrong})


def test_a_velocity_lies_in_the_algebra() -> None:
    symmetry, _ = network("Llama")
    name, space = next((n, s) for n, s in symmetry.spaces.items() if s.group.dimension > s.size)
    batch = [symmetry.spaces[base].size for base in space.over]
    inside = space.group.random_algebra(torch.Generator().manual_seed(0), tuple(batch))
    symmetry.velocity({name: inside})
    orthogonal = next((s for s in symmetry.spaces.values() if "Orthogonal" in str(s.group)), None)
    if orthogonal is not None:
        with pytest.raises(ValueError, match="outside the Lie algebra"):
            symmetry.velocity({orthogonal.name: torch.ones(orthogonal.size, orthogonal.size)})


# -- strangers -------------------------------------------------------------------------------------


def test_elements_of_another_symmetry_do_not_act(rectified, tmp_path: Path) -> None:
    _, symmetry, x = rectified
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    odd = find_symmetry(other, (x,))
    element = symmetry.sample(torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="another symmetry"):
        act(odd, element, other.state_dict())
    element.save(tmp_path / "element.safetensors")
    with pytest.raises(ValueError, match="belongs to the symmetry"):
        GroupElement.load(tmp_path / "element.safetensors", odd)
    with pytest.raises(ValueError, match="kind 'GroupElement'"):
        AlgebraElement.load(tmp_path / "element.safetensors", symmetry)
    (tmp_path / "text").write_text("no element")
    with pytest.raises(ValueError, match="cannot be read"):
        GroupElement.load(tmp_path / "text", symmetry)


def test_the_same_symmetry_derived_again_is_no_stranger(rectified, tmp_path: Path) -> None:
    model, symmetry, x = rectified
    again = ParameterSymmetry.from_json(symmetry.to_json())
    assert again.fingerprint == symmetry.fingerprint
    element = symmetry.sample(torch.Generator().manual_seed(0))
    element.save(tmp_path / "element.safetensors")
    back = GroupElement.load(tmp_path / "element.safetensors", again)
    state = model.state_dict()
    assert same(act(again, element, state), act(symmetry, back, state))


def test_an_element_on_file_is_replaced_at_once_or_not_at_all(
    rectified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, symmetry, _ = rectified
    path = tmp_path / "element.safetensors"
    symmetry.element(mlp=[2.0] * 7).save(path)
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("paramsym.structure.stored.write_safetensors", stop)
    with pytest.raises(OSError, match="no space"):
        symmetry.element(mlp=[3.0] * 7).save(path)
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]


# -- derivatives and batches -----------------------------------------------------------------------


def test_act_is_differentiable_twice_in_the_element(rectified) -> None:
    model, symmetry, x = rectified
    state = dict(model.state_dict())

    def moved(scales: Tensor) -> Tensor:
        return act(symmetry, symmetry.element(mlp=scales.exp()), state)["0.weight"].square().sum()

    scales = torch.randn(7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(moved, scales)
    assert torch.autograd.gradgradcheck(moved, scales)
    function = torch.func.grad(
        lambda s: torch.func.functional_call(
            model, act(symmetry, symmetry.element(mlp=s.exp()), state), (x,)
        ).sum()
    )
    assert function(scales.detach()).abs().max() < 1e-10  # the function does not change


def test_many_copies_at_once(rectified) -> None:
    model, symmetry, x = rectified
    state = dict(model.state_dict())
    scales = torch.rand(64, 7, generator=torch.Generator().manual_seed(0)).double() + 0.5

    def outputs(own: Tensor) -> Tensor:
        moved = act(symmetry, symmetry.element(mlp=own), state)
        return torch.func.functional_call(model, moved, (x,))

    found = torch.func.vmap(outputs)(scales)
    assert found.shape == (64, 4, 3)
    torch.testing.assert_close(found, model(x).expand(64, 4, 3))


def test_copies_of_a_wreath_product_go_into_files(tmp_path: Path) -> None:
    group = Wreath(Wreath(ComplexScaling(4), 2), 3)
    symmetry = ParameterSymmetry({"h": Space("h", group)}, {"w": (parse_axis("h"),)})
    element = symmetry.sample(torch.Generator().manual_seed(0))
    element.save(tmp_path / "element.safetensors")
    back = GroupElement.load(tmp_path / "element.safetensors", symmetry)
    state = {"w": torch.randn(24, dtype=torch.float64)}
    assert torch.equal(act(symmetry, back, state)["w"], act(symmetry, element, state)["w"])
    value, inner = element["h"], element["h"].base.base.diagonal  # type: ignore[union-attr]
    assert torch.equal(back["h"].base.base.diagonal, inner)  # type: ignore[union-attr]
    only_order = GroupElement(symmetry, ({"h": value._replace(base=None)},))  # type: ignore[union-attr]
    assert not torch.equal(act(symmetry, only_order, state)["w"], act(symmetry, back, state)["w"])
    velocity = group.random_algebra(torch.Generator().manual_seed(0), dtype=torch.float64)
    AlgebraElement(symmetry, {"h": velocity}, {}).save(tmp_path / "velocity.safetensors")
    read = AlgebraElement.load(tmp_path / "velocity.safetensors", symmetry)["h"]
    assert torch.equal(read.base.base.diagonal, velocity.base.base.diagonal)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["MLP, ReLU", "MLP, identity", "MultiheadAttention"])
def test_a_batch_of_elements_goes_into_a_file(name: str, tmp_path: Path) -> None:
    """Tensors with a leading dimension, as `torch.func.vmap` takes them."""
    symmetry, state = network(name)
    generator = torch.Generator().manual_seed(0)
    several = [symmetry.sample(generator) for _ in range(3)]

    def tensors(element: GroupElement) -> tuple:
        values, *slides = element.parts
        assert not isinstance(values, Slide)
        offsets = {slide.shift: slide.offset for slide in slides if isinstance(slide, Slide)}
        return stored.fields_of(values), offsets

    def element(found: tuple) -> GroupElement:
        fields, offsets = found
        values = {n: stored.element_of(n, fields) for n in several[0].parts[0]}  # type: ignore[union-attr]
        return GroupElement(symmetry, (values, *(Slide(n, x) for n, x in offsets.items())))

    batch = element(tree_map(lambda *each: torch.stack(each), *map(tensors, several)))
    batch.save(tmp_path / "batch.safetensors")
    back = tensors(GroupElement.load(tmp_path / "batch.safetensors", symmetry))
    assert all(tree_leaves(tree_map(torch.equal, back, tensors(batch))))
    copies = torch.func.vmap(lambda one: act(symmetry, element(one), state))(back)
    for k, one in enumerate(several):
        for n, tensor in act(symmetry, one, state).items():
            torch.testing.assert_close(copies[n][k], tensor)
    assert any((copies[n][0] - copies[n][1]).abs().max() > 1e-2 for n in copies)
