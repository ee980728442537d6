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
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from paramsym.algebra import Element
from paramsym.privacy.coding import Given, decode, encode
from paramsym.privacy.key import Key
from paramsym.privacy.updates import Update, updates_of
from paramsym.structure.symmetry import ParameterSymmetry

Factory: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Compare: TypeAlias = Callable[[Any, Tensor], Tensor]
Clip: TypeAlias = Callable[[list[nn.Parameter]], Any]


class Expected(Enum):
    """What is known beforehand of a key and a training step; the value says it in words."""

    RETRACES = "the step commutes with the key, up to rounding"
    EXACT_ONLY = "the step commutes with the key in exact arithmetic only"
    PARTS = "the step does not commute with the key"
    UNKNOWN = "nothing is known of a part of the step"


@dataclass(frozen=True)
class Retraced:
    """A plain run and an encoded run with the same batches, the second decoded.

    A difference is ‖decoded − plain‖ / ‖plain‖ in the Frobenius norm of one tensor; it is that of
    the decoded tensor alone, ‖decoded‖, where the plain one is zero.

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
    """

    optimizer: str
    steps: int
    expected: Expected
    differences: Mapping[str, float]
    drift: tuple[tuple[int, float], ...]
    travelled: float
    losses: tuple[float, float]
    fingerprint: str

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
) -> Retraced:
    """Train a model plainly and in a key, side by side, and compare them after decoding.

    The encoded run sees g·θ, g·x and the moved targets alone. Both runs are one and the same
    PyTorch loop, `step`: `zero_grad`, forward, loss, `backward`, `clip`, `optimizer.step(closure)`.
    They get the same samples in the same order, and random numbers from the same seed in every
    step, so that where they part it is the step that does not commute, and not the draws.

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

    Raises:
        ValueError: as `encode`, or there are no targets, no samples or no steps.
    """
    inputs, targets = data
    _require_some(targets, steps, batch)
    encoded = encode(
        model, (inputs, targets), key, loss if isinstance(loss, nn.Module) and key.loss else None,
        outputs=outputs,
    )  # fmt: skip
    assert encoded.targets is not None
    plain = _Run(copy.deepcopy(model), inputs, targets, loss, outputs, clip)
    remote = _Run(
        encoded.load_into(model), encoded.inputs, encoded.targets, encoded.loss or loss, outputs,
        clip,
    )  # fmt: skip
    first, drift = _state(plain.model, key), [(0, _largest(_compared(plain, remote, key)))]
    one, other = plain.prepared(optimizer, key), remote.prepared(optimizer, key)
    pause = every or max(1, steps // 20)
    losses = (math.nan, math.nan)
    for count, rows in enumerate(_batches(len(targets), batch, steps, seed), 1):
        losses = plain.step(one, rows, seed + count), remote.step(other, rows, seed + count)
        if count % pause == 0 or count == steps:
            drift.append((count, _largest(_compared(plain, remote, key))))
    return Retraced(
        type(one).__name__, steps, expectation(key, one, loss, clip), _compared(plain, remote, key),
        tuple(drift), _travelled(first, _state(plain.model, key)), losses, key.fingerprint,
    )  # fmt: skip


def _require_some(targets: Tensor | None, steps: int, batch: int | None) -> None:
    if not isinstance(targets, Tensor) or not len(targets) or steps < 1 or (batch or 1) < 1:
        raise ValueError(
            f"retrace(model, (inputs, targets), key, optimizer, steps={steps}, batch={batch}): "
            f"targets {type(targets).__name__} came. A tensor of at least one target, and at least "
            "one step and one sample in each, were expected."
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

    def closure() -> Tensor:
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
    """One of the two runs."""

    model: nn.Module
    inputs: Given
    targets: Tensor
    loss: Compare
    outputs: Callable[[Any], Any] | None
    clip: Clip | None

    def prepared(self, optimizer: Factory, key: Key) -> torch.optim.Optimizer:
        """The optimiser of what is trained."""
        for name, parameter in self.model.named_parameters():
            trained = key.trainable is None or name in key.trainable
            parameter.requires_grad_(parameter.requires_grad and trained)
        return optimizer([p for p in self.model.parameters() if p.requires_grad])

    def step(self, optimizer: torch.optim.Optimizer, rows: Tensor, seed: int) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return step(
                self.model, optimizer, _taken(self.inputs, rows, len(self.targets)),
                self.targets[rows], self.loss, self.outputs, self.clip,
            )  # fmt: skip


def _taken(inputs: Given, rows: Tensor, count: int) -> Given:
    """Some samples; tensors that do not count samples stay whole."""
    if isinstance(inputs, Tensor):
        return inputs[rows]
    return {n: x[rows] if x.ndim and len(x) == count else x for n, x in inputs.items()}


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
    """Copies of what is compared: parameters and floating-point buffers, tied ones once."""
    return {
        name: tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and name not in key.acting.ties
    }


def _compared(plain: _Run, remote: _Run, key: Key) -> dict[str, float]:
    """The relative difference of every tensor after decoding."""
    decoded = decode(remote.model.state_dict(), key)
    found = {}
    for name, tensor in _state(plain.model, key).items():
        size = float(tensor.double().norm())
        error = float((decoded[name].detach().double() - tensor.double()).norm())
        found[name] = error / size if size else error
    return found


def _largest(differences: Mapping[str, float]) -> float:
    return max(differences.values(), key=_size, default=0.0)


def _size(value: float) -> float:
    """A number to compare by: what is not finite is the largest."""
    return value if math.isfinite(value) else math.inf


def _travelled(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> float:
    moved = sum(float((last[n] - first[n]).double().square().sum()) for n in first)
    return math.sqrt(moved / sum(float(x.double().square().sum()) for x in first.values()))


# -- what is known beforehand ----------------------------------------------------------------------


def expectation(
    key: Key,
    optimizer: torch.optim.Optimizer,
    loss: nn.Module | Compare | None = None,
    clip: Clip | None = None,
) -> Expected:
    """What the types say of a key and a training step, before anything is run.

    Args:
        key: made for this step or for another one.
        optimizer: of the step.
        loss: of `torch.nn`; of others it is believed that the key was made for them.
        clip: what is done to gradients, if it is known by its name.
    """
    try:
        updates = (*updates_of(optimizer), *_clipping(clip))
        known = loss if isinstance(loss, nn.Module) else key.loss
        allowed = Key.of(
            key.symmetry, {}, updates, known, trainable=key.trainable, inexact=True
        ).acting
    except ValueError:
        return Expected.UNKNOWN
    if not _contains(allowed, key):
        return Expected.PARTS
    inexact = any(each.inexact for each in updates)
    return Expected.EXACT_ONLY if inexact else Expected.RETRACES


def _clipping(clip: Clip | None) -> tuple[Update, ...]:
    """What is known of a clipping by its name, where its norm is the Euclidean one."""
    if clip is None:
        return ()
    other = getattr(clip, "keywords", {}).get("norm_type", 2)
    name = getattr(getattr(clip, "func", clip), "__name__", "")
    return updates_of("clip_grad_value" if float(other) != 2 else name)


def _contains(allowed: ParameterSymmetry, key: Key) -> bool:
    """Whether a key lies in a subgroup, space by space; what acts in frames lies in none."""
    for part in key.element.parts:
        if not isinstance(part, dict | Mapping):
            return part.shift in allowed.shift_of
        for name, value in part.items():
            own, space = key.acting.spaces[name], allowed.spaces.get(name)
            if not key.acting.parameters_of(name) and not key.acting.interfaces:
                continue
            if space is None or space.over != own.over or space.size != own.size:
                return False
            if not own.group <= space.group and not _has(space.group, value):
                return False
            if any(leg.frame for leg in key.acting.legs(name)):
                return False
    return True


def _has(group: Any, value: Element) -> bool:
    return group.contains(value.to(torch.float64), 1e-7)


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetracingTable:
    """Largest differences over keys and optimisers; runs by (key, optimiser)."""

    runs: Mapping[tuple[str, str], Retraced] = field(default_factory=dict)

    def __str__(self) -> str:
        """One row for each optimiser and one column for each key.

        A star marks pairs of which nothing better than a drift is expected.
        """
        keys = list(dict.fromkeys(key for key, _ in self.runs))
        names = list(dict.fromkeys(name for _, name in self.runs))
        rows = [["", *keys]]
        rows += [[name, *(self._entry(key, name) for key in keys)] for name in names]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(f"{x:<{w}}" for x, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines) + "\n* does not commute"

    def _entry(self, key: str, name: str) -> str:
        run = self.runs.get((key, name))
        if run is None:
            return "–"
        star = "" if run.expected is Expected.RETRACES else "*"
        return f"{run.largest:.0e}{star}"

    def to_json(self) -> str:
        """All runs in full."""
        rows = [
            {"key": key, "name": name, **json.loads(run.to_json())}
            for (key, name), run in self.runs.items()
        ]
        return json.dumps(rows)


def retracing_table(
    model: nn.Module,
    data: tuple[Given, Tensor],
    keys: Mapping[str, Key],
    optimizers: Mapping[str, Factory],
    steps: int,
    *,
    loss: nn.Module | Compare,
    batch: int | None = None,
    seed: int = 0,
    clip: Clip | None = None,
    outputs: Callable[[Any], Any] | None = None,
) -> RetracingTable:
    """`retrace` for every pair of a key and an optimiser.

    Args:
        model: as for `retrace`, and so are all that are not named here.
        data: inputs and targets.
        keys: by a name for the table.
        optimizers: by a name for the table.
        steps: of every run.
        loss: of outputs and targets.
        batch: how many samples each step sees.
        seed: of the order of the samples.
        clip: what is done to gradients.
        outputs: what the loss compares.
    """
    return RetracingTable({
        (key_name, name): retrace(
            model, data, key, optimizer, steps, loss=loss, batch=batch, seed=seed, clip=clip,
            outputs=outputs, every=steps,
        )
        for key_name, key in keys.items()
        for name, optimizer in optimizers.items()
    })  # fmt: skip


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
