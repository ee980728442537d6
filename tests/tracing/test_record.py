"""The recorder: what the user's model does is written down, and the model is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import TraceError, find_symmetry
from paramsym.recording.graph import canonical_keywords, canonical_name
from paramsym.recording.record import call_at, floating_outputs, record


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, *x: Any, **more: Any) -> Any:
        return self.function(self, *x, **more)


X = (torch.randn(6, 4),)


def names(function: Callable[..., Any], inputs: Any = X) -> list[str]:
    return [call.name for call in record(Net(function), inputs).calls]


def test_functions_are_recorded_as_the_user_called_them() -> None:
    assert names(lambda s, x: s.b(torch.relu(s.a(x)))) == ["linear", "relu", "linear"]
    assert names(lambda s, x: s.a(x) @ s.b.weight.T)[-1] == "matmul"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.Tensor.__iadd__, "add"), (torch.ops.aten.add_.Tensor, "add"),
        (torch.Tensor.__rsub__, "rsub"), (torch.Tensor.__rtruediv__, "rdiv"),
        (torch.Tensor.relu_, "relu"), (torch.swapaxes, "transpose"), (torch.clip, "clamp"),
        (torch.ops.aten._softmax.default, "softmax"), (torch.Tensor.mT.__get__, "mT"),
    ],
    ids=range(9),
)  # fmt: skip
def test_one_operator_has_one_name(target: Any, name: str) -> None:
    assert canonical_name(target) == name


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "max", "std", "logsumexp", "argmax"])
def test_the_keywords_of_numpy_are_those_of_torch(name: str) -> None:
    def keywords(**given: Any) -> list[tuple]:
        def forward(s: Net, x: Tensor) -> Tensor:
            found = getattr(s.a(x), name)(**given)
            return s.b(s.a(x) * (found if isinstance(found, Tensor) else found.values))

        calls = record(Net(forward), (torch.randn(6, 4),)).calls
        return [(call.name, call.kwargs) for call in calls if call.name == name]

    assert keywords(axis=-1, keepdims=True) == keywords(dim=-1, keepdim=True) != []


@pytest.mark.parametrize(
    "given", [{"x": 0}, {"a": 0}, {"x1": 0, "x2": 1}, {"input": 0, "x2": 1}], ids=str
)
def test_so_are_those_of_operands(given: dict[str, int]) -> None:
    operator = torch.mul if len(given) > 1 else torch.tanh

    def forward(s: Net, x: Tensor) -> Tensor:
        operands = s.a(x), s.a(x).sin()
        return s.b(operator(**{name: operands[k] for name, k in given.items()}))

    model, x = Net(forward), (torch.randn(6, 4),)
    call = next(c for c in record(model, x).calls if c.name == operator.__name__)
    assert [*call.kwargs] == ["input", "other"][: len(given)]
    symmetry = find_symmetry(model, x, check=False)
    assert not symmetry.unknown and len(symmetry.spaces) > 0


def test_an_axis_that_torch_calls_so_keeps_its_name() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor, axis: int) -> Tensor:
            return x.sum(axis)

    def total(x: Tensor, axis: int = 0) -> Tensor:
        return x.sum(axis)

    assert canonical_keywords(torch.sum, {"axis": 1}) == {"dim": 1}
    assert canonical_keywords(torch.segment_reduce, {"axis": 1}) == {"axis": 1}
    assert canonical_keywords(torch.cdist, {"x1": 1, "x2": 2}) == {"x1": 1, "x2": 2}
    assert canonical_keywords(total, {"axis": 1}) == {"axis": 1}
    assert canonical_keywords(Own.apply, {"axis": 1}) == {"axis": 1}


def test_writes_in_place_are_writes_whatever_they_are_called() -> None:
    for write in (
        lambda y: y.relu_(),
        lambda y: F.relu(y, inplace=True),
        lambda y: nn.ReLU(inplace=True)(y),
        lambda y: torch.relu_(y),
    ):

        def forward(s: Net, x: Tensor, write=write) -> Tensor:
            y = s.a(x)
            write(y)  # the result is thrown away: y itself has changed
            return s.b(y)

        (space,) = find_symmetry(Net(forward), X).spaces.values()
        assert str(space.group) == "Monomial(5)"


def test_a_write_to_a_view_reaches_the_whole() -> None:
    def forward(s: Net, x: Tensor) -> Tensor:
        y = s.a(x)
        y[:, :2].tanh_()
        return s.b(y)

    symmetry = find_symmetry(Net(forward), X)
    assert {str(space.group) for space in symmetry.spaces.values()} == {
        "SignedPermutation(2)", "GeneralLinear(3)",
    }  # fmt: skip


def test_an_input_that_is_written_to_is_not_the_users() -> None:
    x = torch.randn(6, 4)
    before = x.clone()
    find_symmetry(Net(lambda s, y: s.b(s.a(y.mul_(2)))), (x,))
    assert torch.equal(x, before)


def test_tied_parameters_share_one_value_and_one_type() -> None:
    model = Net(lambda s, x: F.linear(F.relu(s.a(x)), s.b.weight))
    model.b = nn.Linear(5, 4, bias=False)
    model.c = nn.Linear(5, 4, bias=False)
    model.c.weight = model.b.weight
    graph = record(model, X)
    assert graph.parameters["b.weight"] is graph.parameters["c.weight"]
    assert find_symmetry(model, X).ties == {"c.weight": "b.weight"}


def test_a_module_under_two_names_is_filled_once_and_given_back() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    weight = shared.weight
    symmetry = find_symmetry(model, X)
    assert shared.weight is weight and type(weight) is nn.Parameter
    assert dict(symmetry.ties) == {"2.weight": "0.weight", "2.bias": "0.bias"}
    other = torch.zeros(4, 4)
    call_at(model, {"0.weight": other}, X, {})
    assert shared.weight is weight


def test_the_place_is_the_users_line_and_module() -> None:
    (call, *_) = record(nn.Sequential(Net(lambda s, x: s.b(s.a(x)))), X).calls
    assert call.where.startswith("test_record.py:") and call.where.endswith("(0.a)")


def test_inputs_by_keyword() -> None:
    model = Net(lambda s, left, right: s.b(s.a(left) + s.a(right)))
    inputs = {"left": torch.randn(6, 4), "right": torch.randn(6, 4)}
    assert str(find_symmetry(model, inputs)) == str(
        find_symmetry(Net(lambda s, x: s.b(s.a(x) + s.a(x))), X)
    )


def test_caches_are_no_outputs() -> None:
    found = floating_outputs(
        {"y": torch.zeros(1), "past_key_values": (torch.zeros(2),), "n": torch.zeros(3).int(),
         "more": [torch.zeros(4), {"mems": torch.zeros(5)}]}
    )  # fmt: skip
    assert [len(t) for t in found] == [1, 4]


def test_the_outputs_are_the_callers_choice() -> None:
    model = Net(lambda s, x: (s.b(F.relu(s.a(x))), s.a(x)))
    assert not find_symmetry(model, X).spaces  # the hidden units are returned as well
    chosen = find_symmetry(model, X, outputs=lambda returned: returned[0])
    assert [str(s.group) for s in chosen.spaces.values()] == ["Monomial(5)"]
    other = find_symmetry(model, X, outputs=lambda returned: returned[1])
    assert set(other.dead) == {"b.weight", "b.bias"}


def test_what_no_output_depends_on_is_dead_and_stands_still() -> None:
    symmetry = find_symmetry(Net(lambda s, x: s.a(x)), X)
    assert symmetry.dead == ("b.weight", "b.bias")
    assert not symmetry.spaces
    assert symmetry.reasons["b.weight"] == ("no output depends on it",) * 2


def test_data_dependent_control_flow_is_refused_with_its_place() -> None:
    def forward(s: Net, x: Tensor) -> Tensor:
        return s.b(s.a(x)) if s.a.weight.sum().item() > 0 else x

    with pytest.raises(TraceError) as caught:
        find_symmetry(Net(forward), X)
    text = str(caught.value)
    assert "find_symmetry(model=Net)" in text and "test_record.py:" in text
    assert "item gives" in text and "control flow" in text and "'a.weight'" in text


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TraceError, match="Check that the example inputs fit the model"):
        find_symmetry(Net(lambda s, x: s.a(x)), (torch.randn(6, 7),))


def test_constants_keep_their_numbers() -> None:
    index = torch.tensor([1, 2, 3])
    graph = record(Net(lambda s, x: s.a(x)[:, index]), X)
    (constant,) = [v for v in graph.values if v.kind == "constant"]
    assert constant.data is not None and constant.data.tolist() == [1, 2, 3]


def test_one_hot_codes_need_no_numbers() -> None:
    model = Net(lambda s, x: s.b(F.relu(F.one_hot(x, 4).float() @ s.a.weight.T)))
    (space,) = find_symmetry(model, (torch.arange(4),)).spaces.values()
    assert str(space.group) == "Monomial(5)"
