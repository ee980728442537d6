"""Permutations in git re-basin's form, out and in, and the classes of parameters."""

import itertools

import pytest
import torch
from torch import nn

from paramsym import find_symmetry, verify
from paramsym.interop import parameter_classes, permutation_spec, symmetry_of_spec


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def test_a_perceptron_is_said_as_by_hand() -> None:
    spec = permutation_spec(find_symmetry(perceptron(), (torch.randn(7, 3),)))
    assert dict(spec.axes) == {
        "0.weight": ("mlp", None), "0.bias": ("mlp",), "2.weight": ("mlp.2", "mlp"),
        "2.bias": ("mlp.2",), "4.weight": (None, "mlp.2"), "4.bias": (None,),
    }  # fmt: skip
    assert spec.places["mlp"] == (("0.weight", 0), ("0.bias", 0), ("2.weight", 1))
    assert not spec.left_out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.inner(x, x, x, need_weights=False)[0])))


def test_heads_are_left_out_by_name_and_what_is_said_is_a_symmetry() -> None:
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 5, 8)
    spec = permutation_spec(find_symmetry(model, (x,)))
    (left,) = spec.left_out
    assert left.endswith("head") and "in_proj_weight" in spec.left_out[left]
    claimed = symmetry_of_spec(spec.axes, shapes(model))
    proved = verify(model, claimed, (x,))
    assert proved.error < 1e-12 and proved.control > 1e-3


def test_a_specification_that_is_read_is_proved_or_refuted() -> None:
    model, x = perceptron(), torch.randn(7, 3)
    axes = dict(permutation_spec(find_symmetry(model, (x,))).axes)
    assert verify(model, symmetry_of_spec(axes, shapes(model)), (x,)).error < 1e-12
    axes["2.weight"] = ("mlp.2", None)  # the reader was forgotten
    assert verify(model, symmetry_of_spec(axes, shapes(model)), (x,)).error > 1e-3


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"b": ("h",)}, "no 'b'"),
        ({"w": ("h",)}, "1 labels"),
        ({"w": ("h", "h")}, "permutes 4 entries"),
    ],
)
def test_what_does_not_fit_is_said(axes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        symmetry_of_spec(axes, {"w": (4, 3)})


def test_classes_are_the_orbits_of_all_permutations() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.across = nn.Linear(2, 3), nn.Linear(3, 3)
            self.down = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.tanh(self.up(x))
            return self.down(torch.tanh(self.across(hidden)) + hidden)

    model = Square()
    spec = permutation_spec(find_symmetry(model, (torch.randn(5, 2),)))
    assert (
        spec.axes["across.weight"] == ("residual",) * 2 or len(set(spec.axes["across.weight"])) == 1
    )
    sizes = shapes(model)
    found = parameter_classes(spec, sizes)
    (space,) = spec.places
    for name, labels in spec.axes.items():
        seen: dict[tuple[int, ...], set[int]] = {}
        for place in itertools.product(*map(range, sizes[name])):
            orbit = {
                tuple(
                    order[i] if label == space else i
                    for i, label in zip(place, labels, strict=True)
                )
                for order in itertools.permutations(range(3))
            }
            seen.setdefault(min(orbit), set()).add(int(found[name][place]))
        assert all(len(classes) == 1 for classes in seen.values())  # an orbit has one class
        assert len(set.union(*seen.values())) == len(seen)  # and another orbit another
    numbers = [set(classes.flatten().tolist()) for classes in found.values()]
    assert all(not a & b for a, b in itertools.combinations(numbers, 2))
