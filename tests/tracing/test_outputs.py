"""What a model returns is walked, whatever holds it; what would be overlooked is refused."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paramsym import TraceError, audit, find_symmetry, verify
from paramsym.recording.outputs import floating_outputs

X = (torch.randn(6, 4, dtype=torch.float64),)
Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Answer:
    scores: Any
    loss: Any = None
    past_key_values: Any = None


class Opaque:
    def __init__(self, scores: Any):
        self.scores = scores


class Slotted:
    __slots__ = ("scores",)

    def __init__(self, scores: Any):
        self.scores = scores


class Net(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]):
        super().__init__()
        self.wrap = wrap
        self.a, self.b = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.b(F.relu(self.a(x))))


def model_output(y: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutputWithPast

    return BaseModelOutputWithPast(last_hidden_state=y, past_key_values=(torch.ones(3),))


WALKED: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "dataclass": lambda y: Answer(y),
    "nested dataclass": lambda y: Answer([Answer((None, {"y": y})), 3]),
    "namedtuple": lambda y: Pair(1, y),
    "mapping": lambda y: collections.UserDict(y=y),
    "transformers": model_output,
    "dataclass with a cache": lambda y: Answer(y, past_key_values=(torch.ones(3),)),
    "tuples": lambda y: ((None, (y,)),),
}


@pytest.mark.parametrize("name", WALKED)
def test_tensors_are_found_in_whatever_holds_them(name: str) -> None:
    model = Net(WALKED[name])
    symmetry = find_symmetry(model, X)
    assert [str(s.group) for s in symmetry.spaces.values()] == ["Monomial(5)"]
    assert not symmetry.dead
    assert len(floating_outputs(model(*X))) == 1
    found = verify(model, symmetry, X)
    assert found.error < 1e-12 < 1e-3 < found.control
    if name == "dataclass":
        assert audit(model, X, symmetry=symmetry).unexplained == 0


@pytest.mark.parametrize("kind", [Opaque, Slotted])
@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: {"answer": [item]}])
def test_an_object_that_hides_tensors_is_refused(kind: Any, wrap: Callable[[Any], Any]) -> None:
    model = Net(lambda y: wrap(kind(y)))
    with pytest.raises(TraceError) as caught:
        find_symmetry(model, X)
    text = str(caught.value)
    assert f"is a {kind.__name__} that holds tensors" in text and "were expected" in text
    assert "the output" in text and "outputs=lambda returned" in text
    symmetry = find_symmetry(Net(lambda y: y), X)
    with pytest.raises(TraceError, match="holds tensors"):
        verify(model, symmetry, X)


def test_the_way_out_works_and_plain_objects_are_no_tensors() -> None:
    model = Net(Opaque)
    symmetry = find_symmetry(model, X, outputs=lambda returned: returned.scores)
    assert len(symmetry.spaces) == 1
    assert floating_outputs([torch.ones(2), Opaque(3), "text", None, Opaque]) != []
    with pytest.raises(TraceError, match="generator that holds tensors"):
        floating_outputs(t for t in [torch.ones(2)])


def test_an_output_that_holds_itself_ends() -> None:
    endless: list[Any] = [torch.ones(2)]
    endless.append(endless)
    assert len(floating_outputs(endless)) == 1
    same = torch.ones(3)
    assert len(floating_outputs([same, {"again": same}])) == 2


@pytest.mark.parametrize("wrap", [lambda y: y.argmax(-1), lambda y: None, lambda y: {"n": 3}])
def test_a_model_without_floating_output_is_refused(wrap: Callable[[Tensor], Any]) -> None:
    with pytest.raises(TraceError) as caught:
        find_symmetry(Net(wrap), X)
    text = str(caught.value)
    assert text.startswith("find_symmetry(model=Net): the model returned no floating tensor")
    assert "at least one was expected" in text and "outputs=" in text
