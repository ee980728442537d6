"""What optimisers commute with, against runs of them: the table holds, and allows no more."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

from paramsym.algebra import GeneralLinear, Group, Orthogonal, SignedPermutation
from paramsym.geometry.updates import _UPDATES, updates_of
from paramsym.privacy import Kind, Update

ROWS, COLUMNS, STEPS = 6, 5, 25
OPTIM = torch.optim
RUN = {
    "sgd": lambda p: OPTIM.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "asgd": lambda p: OPTIM.ASGD(p, 0.02, weight_decay=0.01),
    "lbfgs": lambda p: OPTIM.LBFGS(p, 0.5, max_iter=2),
    "adam": lambda p: OPTIM.Adam(p, 0.02, weight_decay=0.01, amsgrad=True),
    "adamw": lambda p: OPTIM.AdamW(p, 0.02),
    "nadam": lambda p: OPTIM.NAdam(p, 0.02),
    "radam": lambda p: OPTIM.RAdam(p, 0.02),
    "adamax": lambda p: OPTIM.Adamax(p, 0.02),
    "rmsprop": lambda p: OPTIM.RMSprop(p, 0.02, momentum=0.5, centered=True),
    "adagrad": lambda p: OPTIM.Adagrad(p, 0.05),
    "adadelta": lambda p: OPTIM.Adadelta(p, 1.0),
    "rprop": lambda p: OPTIM.Rprop(p, 0.02),
    "adafactor": lambda p: OPTIM.Adafactor(p, 0.05),
}


def clipped(name: str) -> Callable:
    clip = {
        "clip_grad_norm": torch.nn.utils.clip_grad_norm_,
        "clip_grad_value": torch.nn.utils.clip_grad_value_,
    }[name]

    class Clipped(OPTIM.SGD):
        def step(self, closure=None):  # type: ignore[override]
            loss = closure()
            clip([p for g in self.param_groups for p in g["params"]], 0.3)
            super().step()
            return loss

    return lambda p: Clipped(p, 0.05)


RUN |= {name: clipped(name) for name in ("clip_grad_norm", "clip_grad_value")}


def run(make: Callable, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Train θ̃ = U θ Vᵀ on the moved loss, and move the end back; orthogonal or not."""
    generator = torch.Generator().manual_seed(3)
    start, form, pull = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((ROWS, COLUMNS), (2 * ROWS * COLUMNS, ROWS * COLUMNS), (ROWS * COLUMNS,))
    )
    back, forth = torch.linalg.inv(left), torch.linalg.inv(right)
    moved = (left @ start @ right.mT).requires_grad_()
    optimizer = make([moved])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        plain = (back @ moved @ forth.mT).reshape(-1)
        loss = (form @ plain).square().mean() / 4 + (plain * pull).sum().cos()
        loss.backward()
        return loss.detach()

    for _ in range(STEPS):
        optimizer.step(closure)
    return back @ moved.detach() @ forth.mT


def error(name: str, group: Group, other: Group) -> float:
    generator = torch.Generator().manual_seed(8)
    left, right = (
        each.matrix(each.sample(generator, dtype=torch.float64)) for each in (group, other)
    )
    plain = run(RUN[name], torch.eye(ROWS).double(), torch.eye(COLUMNS).double())
    return float((run(RUN[name], left.double(), right.double()) - plain).norm() / plain.norm())


@pytest.mark.parametrize("name", sorted(RUN))
def test_steps_commute_with_the_group_of_the_table(name: str) -> None:
    update = _UPDATES[name]
    rounding = 1e-5 if name == "lbfgs" else 1e-9  # which its quotients of differences blow up
    assert error(name, update.group(ROWS), update.group(COLUMNS)) < rounding


@pytest.mark.parametrize("name", sorted(RUN))
def test_steps_commute_with_no_larger_group(name: str) -> None:
    dense = _UPDATES[name].kind is Kind.INNER_PRODUCTS
    larger = GeneralLinear if dense else Orthogonal
    assert error(name, larger(ROWS), larger(COLUMNS)) > 1e-3


def test_means_over_rows_see_orders_that_differ_from_row_to_row() -> None:
    """Why `keeps_axes`: Adam takes any order of the entries of a matrix, Adafactor does not."""
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(10, ROWS, COLUMNS, generator=generator, dtype=torch.float64)
    order = torch.stack([torch.randperm(COLUMNS, generator=generator) for _ in range(ROWS)])

    def ended(make: Callable, moved: bool) -> torch.Tensor:
        p = torch.ones(ROWS, COLUMNS, dtype=torch.float64, requires_grad=True)
        optimizer = make([p])
        for grad in grads:
            p.grad = grad.gather(1, order) if moved else grad.clone()
            optimizer.step()
        return p.detach() if moved else p.detach().gather(1, order)

    adam, factored = RUN["adam"], RUN["adafactor"]
    assert torch.allclose(ended(adam, True), ended(adam, False), rtol=0, atol=1e-12)
    assert float((ended(factored, True) - ended(factored, False)).abs().max()) > 1e-3
    assert _UPDATES["adafactor"].keeps_axes and not _UPDATES["adam"].keeps_axes


def test_every_optimiser_of_torch_is_known() -> None:
    kinds = {
        name.lower() for name, kind in vars(OPTIM).items()
        if inspect.isclass(kind) and issubclass(kind, OPTIM.Optimizer)
    }  # fmt: skip
    assert kinds - {"optimizer"} <= {*_UPDATES}


def test_what_decays_is_read_off_the_optimiser() -> None:
    weight = [torch.nn.Parameter(torch.ones(2))]
    (plain,), (pulled,) = updates_of(OPTIM.SGD(weight, 0.1)), updates_of(RUN["sgd"](weight))
    assert not plain.decays and pulled.decays
    assert updates_of("adamw")[0].decays
    assert updates_of(OPTIM.ASGD(weight, 0.1))[0].decays  # by a λ of its own
    assert not updates_of(OPTIM.AdamW(weight, 0.1, weight_decay=0.0))[0].decays


def test_several_parts_of_a_step() -> None:
    assert [u.name for u in updates_of(("sgd", "clip_grad_value_"))] == ["sgd", "clip_grad_value"]
    assert updates_of(None) == ()
    own = Update("own", Kind.ENTRYWISE)
    assert updates_of(own) == (own,)
    assert own.group(3) == SignedPermutation(3)


class Adam(OPTIM.SGD):
    """An impostor: not torch's Adam, whatever its name says."""


@pytest.mark.parametrize("unknown", ["adan", Adam, 3])
def test_the_unknown_is_refused(unknown: object) -> None:
    with pytest.raises(ValueError, match="nothing is known of its step"):
        updates_of(unknown)  # type: ignore[arg-type]
