"""An action that writes into its arguments is refused, and so is what it should not give back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paramsym.discovery.acting.actions import check_action
from paramsym.discovery.acting.guarded import copied, same

Params = dict[str, Tensor]
Generator = torch.Generator


def normal(*shape: int) -> Callable[[Generator], Tensor]:
    return lambda generator: torch.randn(shape, generator=generator, dtype=torch.float64)


def linear(g: Tensor, params: Params, x: Tensor) -> Params:
    return {"U": params["U"] @ torch.linalg.inv(g), "V": g @ params["V"]}


def loss(params: Params, x: Tensor) -> Tensor:
    return params["U"] @ params["V"] @ x.T


GIVEN: dict[str, Any] = {
    "elements": lambda generator: torch.linalg.matrix_exp(0.4 * normal(2, 2)(generator)),
    "params": lambda generator: {"U": normal(2, 2)(generator), "V": normal(2, 3)(generator)},
    "data": normal(4, 3),
    "samples": 8,
}


def check(action: Any = linear, loss: Any = loss, **other: Any) -> Any:
    return check_action(action, loss, **{**GIVEN, **other})


def test_the_control() -> None:
    assert check().is_symmetry
    assert check(directions=normal(2, 2)).is_symmetry


def zeroes_data(g: Tensor, params: Params, x: Tensor) -> Params:
    """No symmetry: the third column of V rests, and the loss of the data that it leaves says so."""
    x[:, 2] = 0
    found = linear(g, params, x)
    found["V"][:, 2] = params["V"][:, 2]
    return found


def zeroes_params(g: Tensor, params: Params, x: Tensor) -> Params:
    found = linear(g, params, x)
    params["V"].zero_()
    return found


def writes_params(g: Tensor, params: Params, x: Tensor) -> Params:
    params["V"].copy_(g @ params["V"])
    params["U"].copy_(params["U"] @ torch.linalg.inv(g))
    return params


def takes_names(g: Tensor, params: Params, x: Tensor) -> Params:
    return {"U": params.pop("U") @ torch.linalg.inv(g), "V": g @ params["V"]}


def inverts_element(g: Tensor, params: Params, x: Tensor) -> Params:
    found = linear(g, params, x)
    g.copy_(torch.linalg.inv(g))
    return found


@pytest.mark.parametrize("infinitesimal", [False, True])
@pytest.mark.parametrize(
    ("action", "argument"),
    [
        (zeroes_data, "data"), (zeroes_params, "params"), (writes_params, "params"),
        (takes_names, "params"), (inverts_element, "g"),
    ],
)  # fmt: skip
def test_actions_that_change_their_arguments_are_refused(
    action: Any, argument: str, infinitesimal: bool
) -> None:
    other = {"directions": normal(2, 2)} if infinitesimal else {}
    with pytest.raises(ValueError, match=f"draw 0: the action changed its argument '{argument}'"):
        check(action, **other)


@pytest.mark.parametrize("argument", ["params", "data"])
def test_losses_that_change_their_arguments_are_refused(argument: str) -> None:
    def writing(params: Params, x: Tensor) -> Tensor:
        found = loss(params, x)
        (params["V"] if argument == "params" else x).zero_()
        return found

    with pytest.raises(ValueError, match=f"the loss changed its argument '{argument}' in place"):
        check(loss=writing)


def test_an_action_with_one_buffer_for_its_results_is_read_at_once() -> None:
    buffers = {"U": torch.empty(2, 2).double(), "V": torch.empty(2, 3).double()}

    def reusing(g: Tensor, params: Params, x: Tensor) -> Params:
        for name, found in linear(g, params, x).items():
            buffers[name].copy_(found)
        return buffers

    assert check(reusing).is_symmetry


def test_a_sampler_with_one_tensor_for_its_draws_is_read_at_once() -> None:
    held = torch.empty(4, 3).double()
    found = check(data=lambda generator: held.copy_(normal(4, 3)(generator)))
    assert found.is_symmetry
    assert found["data dependence"].value.worst == 0


@dataclass
class Batch:
    """Data of another kind, which cannot be compared."""

    x: Tensor


def test_data_of_any_kind_are_copies() -> None:
    def writing(g: Tensor, params: Params, batch: Batch) -> Params:
        return zeroes_data(g, params, batch.x)

    found = check(
        writing,
        lambda p, batch: loss(p, batch.x),
        data=lambda draw: Batch(normal(4, 3)(draw)),
    )
    assert not found.is_symmetry
    assert found["loss invariance"].verdict.value == "fails"


def test_arrays_are_compared() -> None:
    def writing(g: Tensor, params: Params, x: np.ndarray) -> Params:
        x[0] = 0
        return linear(g, params, torch.from_numpy(x))

    given = {
        "loss": lambda p, x: loss(p, torch.from_numpy(x)),
        "data": lambda generator: normal(4, 3)(generator).numpy(),
    }
    assert check(**given).is_symmetry
    with pytest.raises(ValueError, match="changed its argument 'data'"):
        check(writing, **given)


def test_sameness_is_of_bits_and_structure() -> None:
    item = {"x": torch.tensor([1.0, torch.nan]), "n": 3, "a": np.ones(2), "o": object(), "l": [1]}
    assert same(item, copied(item))
    for name, other in (
        ("x", torch.tensor([1.0, 2.0])), ("x", torch.tensor([1.0])), ("x", torch.ones(2).double()),
        ("n", 4), ("n", "3"), ("a", np.zeros(2)), ("l", [2]), ("l", [1, 1]), ("more", 1),
    ):  # fmt: skip
        assert not same(item, {**item, name: other})


# What comes back, and what is drawn.


def test_what_is_no_set_of_parameters_is_refused() -> None:
    for back, why in (
        (lambda found: [*found.values()], "gave a list back, and a dict of tensors"),
        (lambda found: None, "gave None back"),
        (lambda found: {n: t.numpy() for n, t in found.items()}, "gave a dict back, and a dict of"),
        (
            lambda found: {n: t.float() for n, t in found.items()},
            r"float32\)} back for .* dtype",
        ),
        (lambda found: {n: t + 0j for n, t in found.items()}, "complex128.* back for"),
        (lambda found: {**found, "W": found["U"]}, "the same names and shapes"),
    ):
        with pytest.raises(ValueError, match=why):
            check(lambda g, p, x, back=back: back(linear(g, p, x)))


def test_singular_elements_and_other_draws_are_refused() -> None:
    for other, why in (
        ({"elements": lambda generator: torch.zeros(2, 2).double()}, "no value at an element"),
        ({"elements": lambda generator: [[1.0]]}, "'list'> was drawn, and a tensor of finite"),
        ({"elements": lambda generator: torch.full((2, 2), torch.nan)}, "was drawn, and a tensor"),
        ({"params": {"U": [1.0]}}, "'U' came as a list, and a tensor was expected"),
        ({"tolerance": torch.nan}, "tolerance=nan"), ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"tolerance": torch.inf}, "tolerance=inf"), ({"confidence": 1.0}, "confidence=1.0"),
        ({"loss": lambda p, x: p["U"][:0]}, "the loss has no entries"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            check(**other)


def test_counters_among_the_buffers_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double()
    with pytest.raises(ValueError, match="'1.num_batches_tracked' of torch.int64 came"):
        check(params=dict(model.state_dict()))
