"""One class of the atlas: built, derived, verified on fresh inputs, and audited.

What is known so far is said as soon as it is known: a step that takes too long loses only itself.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from atlas_classes import Case
from atlas_variants import WAYS, randomise
from torch import nn

from paramsym import audit, audit_cost, find_symmetry, verify
from paramsym.recording.record import record
from paramsym.structure.symmetry import ParameterSymmetry

AUDITED = 8_000  # parameters
_DOUBT = 1.1  # an estimate may be so many times too long
_IN_VAIN = 2  # further audits of one kind are enough
ROWS = 3  # spaces and shifts that are moved alone; all move together
WRONG = 1e-8  # a relative change of the function that is no rounding in float64
Say = Callable[[dict[str, Any]], None]
_SPECIAL = ("image", "video", "audio", "vision")


def measure(case: Case, say: Say, seconds: float = math.inf) -> None:
    """Measure one class, and say what was found step by step, in so many seconds of wall time."""
    until = time.monotonic() + seconds
    torch.manual_seed(0)  # which each process has of its own otherwise
    try:
        model, inputs = case.build()
    except Exception as error:
        say({"built": False, "why": _line(error)})
        return
    count = sum(p.numel() for p in model.parameters())
    say({"built": True, "parameters": count})
    randomise(model, inputs)
    try:
        began = time.process_time()
        symmetry = find_symmetry(model, inputs)
    except Exception as error:
        say({"why": _line(error)})
        return
    seconds = round(time.process_time() - began, 3)
    say({"seconds": seconds, **_described(model, symmetry)})
    say(_verified(model, symmetry, inputs))
    if count <= AUDITED:
        _audit(model, symmetry, inputs, say, until)


def _audit(
    model: nn.Module, symmetry: ParameterSymmetry, inputs: Any, say: Say, until: float = math.inf
) -> None:
    """Audit a class, and again where something is left that other small models may not have.

    What would not end in time is not begun.
    """
    estimate = _estimated(model, symmetry, inputs)
    say({"estimated_seconds": round(estimate, 1)})
    if time.monotonic() + estimate / _DOUBT > until:
        say({"audited": False, "audit": f"it would take about {estimate:.0f} seconds"})
        return
    began = time.monotonic()
    found = _audited(model, symmetry, inputs)
    if found.get("unexplained") and (kept := _kept(model, inputs)):
        say({"audited": False, "audit": kept})
        return
    say(found)
    last = time.monotonic() - began
    for why, make in WAYS.items():
        vain = 0
        for other, given in make(model, inputs):
            if not found.get("unexplained"):
                return
            if time.monotonic() + last > until:
                say({"ended": f"{found['unexplained']} were left, and no time for other audits"})
                return
            if vain == _IN_VAIN:
                break
            vain += 1
            again = _audited(other, find_symmetry(other, given), given)
            if again.get("unexplained", found["unexplained"]) < found["unexplained"]:
                say({**again, why: found["unexplained"]})
                found, vain = again, 0


def _estimated(model: nn.Module, symmetry: ParameterSymmetry, inputs: Any) -> float:
    """How many seconds an audit may take; none where it will say why it cannot be."""
    try:
        return audit_cost(model, inputs, symmetry=symmetry).seconds
    except Exception:
        return 0.0


def warm() -> None:
    """Measure a small network here, so that no class pays for what is loaded with the first."""
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2))
    measure(Case("warm", "plain", lambda: (model, (torch.randn(7, 3),))), lambda _: None)
    try:
        import transformers

        from paramsym import twin
    except ImportError:
        return
    for config in (transformers.LlamaConfig(), transformers.ViTConfig(), transformers.BartConfig()):
        twin(config)


def _line(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]} ({place})"


def _kept(model: nn.Module, inputs: Any) -> str:
    """Why an audit says nothing about other texts, if inputs decide what is computed."""
    decided = record(model, inputs, None, False).decided
    which = ", ".join(f"{name} at {where}" for name, where in decided.items())
    return f"inputs that decide what is computed are kept: {which}" if decided else ""


def _described(model: nn.Module, symmetry: ParameterSymmetry) -> dict[str, Any]:
    """What is held: operators without a rule, and the share of tensors that nothing moves."""
    from paramsym.structure.axes import spaces_of

    shifted = {name for shift in symmetry.shifts for name in shift.parameters}
    trained = [name for name, _ in model.named_parameters() if name in symmetry.signature]
    frozen = [
        name for name in trained
        if name not in shifted and name not in symmetry.dead
        and not any(True for axis in symmetry.signature[name] for _ in spaces_of(axis))
    ]  # fmt: skip
    reasons: dict[str, int] = {}
    for texts in symmetry.reasons.values():
        for text in texts:
            reasons[text] = reasons.get(text, 0) + 1
    return {
        "unknown": dict(symmetry.unknown),
        "frozen": round(len(frozen) / max(1, len(trained)), 3),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -item[1])[:8]),
        "refuted": str(symmetry.checked)[:300],
    }


def _verified(model: nn.Module, symmetry: ParameterSymmetry, inputs: Any) -> dict[str, Any]:
    """The worst relative change of the function, at the given inputs, other ones, other buffers."""
    worst: dict[str, float] = {}
    for name, fresh in _fresh(model, inputs):
        try:
            rows = ROWS if name == "given" else 1
            found = verify(model, symmetry, fresh, limit=rows)
        except Exception as error:
            worst[name] = -1.0
            if name == "given":
                return {"error": None, "why": _line(error)}
            continue
        worst[name] = found.error
    with _other_integers(model) as changed:
        if changed:
            try:
                worst["buffers"] = verify(model, symmetry, inputs, limit=1).error
            except Exception:
                worst["buffers"] = -1.0
    ran = [value for name, value in worst.items() if value >= 0 and name != "buffers"]
    error = max(ran, default=0.0)
    return {"error": error, "errors": worst, "unsound": bool(error > WRONG)}


def _fresh(model: nn.Module, inputs: Any) -> Iterator[tuple[str, Any]]:
    """The given inputs, a larger batch of others, and a shorter text."""
    yield "given", inputs
    named = dict(inputs) if isinstance(inputs, dict) else dict(enumerate(inputs))
    special = _special_tokens(model)
    generator = torch.Generator().manual_seed(3)

    def other(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.ndim or x.dtype == torch.bool:
            return x
        shape = (3, *x.shape[1:])
        if x.is_floating_point():
            return torch.randn(shape, generator=generator).to(x.dtype)
        rows = x[torch.randint(len(x), (3,), generator=generator)]
        values = torch.tensor([v for v in x.flatten().tolist() if v not in special] or [0])
        drawn = values[torch.randint(len(values), shape, generator=generator)].to(x.dtype)
        held = torch.isin(rows, torch.tensor(sorted(special) or [-1]).to(x.dtype))
        return torch.where(held, rows, drawn)

    def back(found: dict[Any, Any]) -> Any:
        return found if isinstance(inputs, dict) else tuple(found.values())

    yield "batch", back({name: other(x) for name, x in named.items()})
    texts = [name for name, x in named.items() if str(name).endswith("input_ids")]
    if texts and not any(special & {*named[name].flatten().tolist()} for name in texts):
        yield "length", back({n: x[:, :5] if n in texts else x for n, x in named.items()})


def _special_tokens(model: nn.Module) -> set[int]:
    """Tokens that say which places of a text hold something else."""
    config = getattr(model, "config", None)
    table = config.to_dict() if hasattr(config, "to_dict") else {}
    return {
        value for name, value in table.items()
        if isinstance(value, int) and any(word in name for word in _SPECIAL) and "token" in name
    }  # fmt: skip


class _other_integers:  # noqa: N801 - reads as a statement
    """Inside, the entries of every integer buffer stand in another order."""

    def __init__(self, model: nn.Module):
        self.buffers = [
            b for b in model.buffers()
            if not b.is_floating_point() and b.dtype != torch.bool and b.numel() > 1
        ]  # fmt: skip

    def __enter__(self) -> bool:
        generator = torch.Generator().manual_seed(5)
        self.saved = [b.clone() for b in self.buffers]
        for b in self.buffers:
            order = torch.randperm(b.numel(), generator=generator)
            b.copy_(b.flatten()[order].reshape(b.shape))
        return bool(self.buffers)

    def __exit__(self, *_: object) -> None:
        for b, saved in zip(self.buffers, self.saved, strict=True):
            b.copy_(saved)


def _audited(model: nn.Module, symmetry: ParameterSymmetry, inputs: Any) -> dict[str, Any]:
    began = time.process_time()
    try:
        found = audit(model, inputs, symmetry=symmetry)
    except Exception as error:
        return {"audited": False, "audit": _line(error)}
    seconds = round(time.process_time() - began, 2)
    if found.unexplained and found.derivative.jumps:  # it does not see thresholds move
        return {"audited": False, "audit": "its outputs jump, so that a derivative says too much"}
    return {
        "audited": True, "explained": found.explained, "unexplained": found.unexplained,
        "denied": {**found.refuted}, "undecided": [*found.undecided], "audit_seconds": seconds,
        "unsound": bool(found.refuted) or None,
        "where": {n: round(s, 2) for n, s in sorted(found.where.items(), key=lambda i: -i[1])[:4]}
        if found.unexplained else {},
        "suspects": [str(s)[:200] for s in found.suspects[:3]],
    }  # fmt: skip
