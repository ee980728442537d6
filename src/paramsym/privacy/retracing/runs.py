"""Does training in a key retrace plain training? Both are run, and compared tensor by tensor.

    θ₀ ──train──▶ θ_T                   ‖g⁻¹·θ̃_T − θ_T‖ / ‖θ_T‖
    │g              ▲ g⁻¹
    g·θ₀ ──train──▶ θ̃_T

The square commutes if every step commutes with g. Then what is measured is rounding, which grows
with the number of steps; where a step does not commute, the two runs part at the first one.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from paramsym.privacy.checks import Given, taken
from paramsym.privacy.coding import decode, encode
from paramsym.privacy.keys.key import Key
from paramsym.privacy.keys.rates import Rates
from paramsym.privacy.retracing.expected import Clip, Compare, Expected, expectation

Factory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Retraced:
    """A plain run and an encoded run with the same batches, the second decoded.

    A difference is ‖decoded − plain‖ / ‖plain‖ in the Frobenius norm of one tensor. What divides is
    at least √ε ‖θ‖, with the norm of all tensors together and the ε of the dtype: biases that no
    gradient reaches hold rounding alone, of which there is nothing to retrace.

    Attributes:
        optimizer: the class of the optimiser.
        steps: how many there were.
        expected: what is known beforehand.
        differences: by tensor, after the last step; parameters and floating-point buffers, tied
            ones once.
        drift: (step, the largest difference) along the way, from step 0 on.
        travelled: ‖θ_T − θ₀‖ / ‖θ₀‖ of the plain run, all parameters together: what there was to
            retrace.
        losses: of the last batch, plain and encoded.
        fingerprint: of the key.
        rounding: the largest difference that rounding makes without any key, if it was asked for:
            of a plain run whose first parameters are each off by one unit in the last place. Where
            training is chaotic, this grows as the difference of a key that commutes does.
    """

    optimizer: str
    steps: int
    expected: Expected
    differences: Mapping[str, float]
    drift: tuple[tuple[int, float], ...]
    travelled: float
    losses: tuple[float, float]
    fingerprint: str
    rounding: float | None = None

    @property
    def largest(self) -> float:
        """The largest difference of any tensor after the last step."""
        return max(self.differences.values(), key=_size, default=0.0)

    @property
    def worst(self) -> str:
        """The tensor that has it."""
        return max(self.differences, key=lambda name: _size(self.differences[name]), default="")

    def __str__(self) -> str:
        lines = [
            f"{self.optimizer}, {self.steps} steps in the key {self.fingerprint[:12]}…: "
            f"{self.expected.value}",
            f"largest difference {self.largest:.1e} ({self.worst}), "
            f"travelled {self.travelled:.1e}, losses {self.losses[0]:.6g} and {self.losses[1]:.6g}",
            "drift  " + "  ".join(f"{step}: {value:.0e}" for step, value in _few(self.drift)),
        ]
        if self.rounding is not None:
            lines.append(
                f"rounding alone, without a key, makes a difference of {self.rounding:.1e}"
            )
        return "\n".join(lines)

    def to_json(self) -> str:
        """All of it as JSON; what is not finite becomes a text."""
        return json.dumps(_plain({**asdict(self), "largest": self.largest, "worst": self.worst}))


def retrace(
    model: nn.Module,
    data: tuple[Given, Tensor],
    key: Key,
    optimizer: Factory,
    steps: int,
    *,
    loss: nn.Module | Compare,
    batch: int | None = None,
    seed: int = 0,
    clip: Clip | None = None,
    outputs: Callable[[Any], Any] | None = None,
    every: int | None = None,
    rounding: bool = False,
) -> Retraced:
    """Train a model plainly and in a key, side by side, and compare them after decoding.

    The encoded run sees g·θ, g·x, the moved targets and the rates of a key that scales. Both runs
    are one and the same PyTorch loop, `step`: `zero_grad`, forward, loss, `backward`, `clip`,
    `optimizer.step(closure)`. They get the same samples in the same order, and random numbers from
    the same seed in every step, so that where they part it is the step that does not commute, and
    not the draws.

    Args:
        model: at its first parameters, in the mode in which it is trained; it is not touched, and
            its dtype is that of both runs.
        data: inputs, a tensor or tensors by the names of `forward`, and targets.
        key: of the model, made for this training or not: `Key.generate(symmetry, generator)` knows
            of no optimiser, and then the runs may part.
        optimizer: from the trained parameters to an optimiser, `lambda p: torch.optim.SGD(p, 0.1)`.
        steps: how many.
        loss: of outputs and targets. The weights of a loss of `torch.nn` go along with the classes;
            a function of one's own is used as it is on both sides.
        batch: how many samples each step sees; all of them by default.
        seed: of the order of the samples and of what is drawn in a step.
        clip: what is done to the gradients of the parameters before the step, for example
            `partial(torch.nn.utils.clip_grad_norm_, max_norm=1.0)`.
        outputs: from what the model returns to what the loss compares.
        every: compare after so many steps; a twentieth of all by default.
        rounding: run plain training a second time, from parameters that are rounded otherwise, to
            tell what of the difference is no matter of the key.

    Raises:
        ValueError: as `encode`, there are no targets, no samples or no steps, or the key scales
            and the optimiser decays in a way that its rates do not undo.
    """
    inputs, targets = data
    _require_some(targets, steps, batch)
    encoded = encode(
        model, (inputs, targets), key, loss if isinstance(loss, nn.Module) and key.loss else None,
        outputs=outputs,
    )  # fmt: skip
    assert encoded.targets is not None

    def run(of: nn.Module, x: Given, y: Tensor, compare: Compare) -> _Run:
        return _Run(of, x, y, compare, outputs, clip, _optimizer(of, optimizer, key))

    plain = run(copy.deepcopy(model), inputs, targets, loss)
    first = _state(plain.model, key)
    remote = run(
        encoded.load_into(model), encoded.inputs, encoded.targets, encoded.loss or loss
    )  # fmt: skip
    if key.updates and key.learning_rates is not None:
        _tell(remote, key.learning_rates)
    twin = run(_rounded(model, seed), inputs, targets, loss) if rounding else None

    def compared() -> dict[str, float]:
        return _differences(decode(remote.model.state_dict(), key), _state(plain.model, key))

    differences = compared()
    drift, losses, pause = [(0, _largest(differences))], (math.nan, math.nan), every or steps // 20
    for count, rows in enumerate(_batches(len(targets), batch, steps, seed), 1):
        losses = plain.step(rows, seed + count), remote.step(rows, seed + count)
        if twin is not None:
            twin.step(rows, seed + count)
        if count % max(1, pause) == 0 or count == steps:
            differences = compared()
            drift.append((count, _largest(differences)))
    last = _state(plain.model, key)
    return Retraced(
        type(plain.optimizer).__name__, steps, expectation(key, plain.optimizer, loss, clip),
        differences, tuple(drift), _travelled(first, last), losses, key.fingerprint,
        None if twin is None else _largest(_differences(_state(twin.model, key), last)),
    )  # fmt: skip


def _require_some(targets: Tensor | None, steps: int, batch: int | None) -> None:
    some = isinstance(targets, Tensor) and len(targets) > 0
    if not some or steps < 1 or (batch is not None and batch < 1):
        raise ValueError(
            f"retrace(model, (inputs, targets), key, optimizer, steps={steps}, batch={batch}): "
            f"targets {type(targets).__name__} came. A tensor of at least one target was "
            "expected, at least one step, and one sample in each. Pass other numbers."
        )


# -- the loop --------------------------------------------------------------------------------------


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Given,
    targets: Tensor,
    loss: Compare,
    outputs: Callable[[Any], Any] | None = None,
    clip: Clip | None = None,
) -> float:
    """One step of training, PyTorch alone: what the other side runs.

    Returns:
        The loss before the step.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"]]

    def closure() -> Any:
        optimizer.zero_grad()
        returned = model(inputs) if isinstance(inputs, Tensor) else model(**inputs)
        value = loss(returned if outputs is None else outputs(returned), targets)
        value.backward()
        if clip is not None:
            clip(trained)
        return value

    return float(torch.as_tensor(optimizer.step(closure)).detach())


@dataclass(frozen=True, eq=False)
class _Run:
    """A model that is trained, with its data."""

    model: nn.Module
    inputs: Given
    targets: Tensor
    loss: Compare
    outputs: Callable[[Any], Any] | None
    clip: Clip | None
    optimizer: torch.optim.Optimizer

    def step(self, rows: Tensor, seed: int) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return step(
                self.model, self.optimizer, taken(self.inputs, rows, len(self.targets)),
                self.targets[rows], self.loss, self.outputs, self.clip,
            )  # fmt: skip


def _optimizer(model: nn.Module, factory: Factory, key: Key) -> torch.optim.Optimizer:
    """The optimiser of what is trained."""
    for name, parameter in model.named_parameters():
        trained = key.trainable is None or name in key.trainable
        parameter.requires_grad_(parameter.requires_grad and trained)
    return factory([p for p in model.parameters() if p.requires_grad])


def _tell(run: _Run, rates: Rates) -> None:
    """Give an optimiser a rate for each entry, which it has no argument for, by hooks of PyTorch.

    With D² on each gradient SGD makes the steps of lr·D². Other steps u divide by the root of
    squares: from the plain gradient D g̃ they make the plain u, and the entry goes by D u.
    """
    if not rates.squared and any(g.get("weight_decay") for g in run.optimizer.param_groups):
        raise ValueError(
            f"retrace(…, key, …): the key scales, and {type(run.optimizer).__name__} decays its "
            "parameters, which its rates do not undo. An optimiser without decay or SGD was "
            "expected. Set weight_decay=0, or make the key without scalings."
        )
    named = dict(run.model.named_parameters())
    factors = [(named[n], d.to(named[n])) for n, d in rates.scales.items() if n in named]
    before: list[Tensor] = []
    for p, factor in factors:
        own = factor.square() if rates.squared else factor
        p.register_hook(lambda gradient, own=own: gradient * own)
    if not rates.squared:
        run.optimizer.register_step_pre_hook(
            lambda *_: before.extend(p.detach().clone() for p, _ in factors)
        )

        def scaled(*_: Any) -> None:
            for (p, factor), old in zip(factors, before, strict=True):
                p.data = old + factor * (p.detach() - old)
            before.clear()

        run.optimizer.register_step_post_hook(scaled)


def _rounded(model: nn.Module, seed: int) -> nn.Module:
    """A copy of a model whose every parameter is off by one unit in the last place."""
    made, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            signs = 2 * torch.randint(0, 2, p.shape, generator=generator).to(p) - 1
            p.copy_(torch.nextafter(p, p + signs * p.abs().clamp_min(torch.finfo(p.dtype).tiny)))
    return made


def _batches(count: int, batch: int | None, steps: int, seed: int) -> Iterator[Tensor]:
    """Samples for every step, each once in every pass; what is left of a pass is dropped."""
    generator = torch.Generator().manual_seed(seed)
    size = min(batch or count, count)
    order = torch.arange(0)
    for _ in range(steps):
        if size == count:
            yield torch.arange(count)
            continue
        if len(order) < size:
            order = torch.randperm(count, generator=generator)
        rows, order = order[:size], order[size:]
        yield rows


# -- the comparison --------------------------------------------------------------------------------


def _state(model: nn.Module, key: Key) -> dict[str, Tensor]:
    """Copies of what is compared: parameters and buffers that are no counts, tied ones once.

    Complex tensors are written as pairs of real numbers.
    """
    return {
        name: _real(tensor.detach()).clone()
        for name, tensor in model.state_dict().items()
        if (tensor.is_floating_point() or tensor.is_complex()) and name not in key.acting.ties
    }


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _differences(decoded: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> dict[str, float]:
    """The relative difference of every tensor."""
    norms = {name: float(tensor.double().norm()) for name, tensor in plain.items()}
    whole = math.hypot(*norms.values())
    found = {}
    for name, tensor in plain.items():
        least = math.sqrt(torch.finfo(tensor.dtype).eps) * whole
        error = float((_real(decoded[name].detach()).double() - tensor.double()).norm())
        found[name] = error / (max(norms[name], least) or 1.0)
    return found


def _largest(differences: Mapping[str, float]) -> float:
    return max(differences.values(), key=_size, default=0.0)


def _size(value: float) -> float:
    """A number to compare by: what is not finite is the largest."""
    return value if math.isfinite(value) else math.inf


def _travelled(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> float:
    moved = sum(float((last[n] - first[n]).double().square().sum()) for n in first)
    return math.sqrt(moved / sum(float(x.double().square().sum()) for x in first.values()))


# -- as text ---------------------------------------------------------------------------------------


def _few(
    drift: tuple[tuple[int, float], ...], count: int = 6
) -> Iterator[tuple[int, float]]:  # fmt: skip
    """The first, the last and some in between."""
    last = len(drift) - 1
    yield from (drift[k] for k in sorted({round(last * j / (count - 1)) for j in range(count)}))


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
