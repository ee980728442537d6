"""Fourier transforms, and the real and complex readings of numbers.

A transform along axes other than that of the features is a fixed linear map along them. Taking the
real part is linear over the real numbers, which is what scales and changes of basis are made of.
"""

from __future__ import annotations

import torch

from paramsym.lowering.builder import Builder, Tensor
from paramsym.lowering.recognisers.context import axes
from paramsym.lowering.registry import rule
from paramsym.recording.graph import Call

_ONE = tuple(f"fft_{inverse}{kind}" for kind in ("fft", "rfft", "hfft") for inverse in ("", "i"))
_TWO = tuple(f"fft_{inverse}{kind}2" for kind in ("fft", "rfft", "hfft") for inverse in ("", "i"))
_MANY = tuple(f"fft_{inverse}{kind}n" for kind in ("fft", "rfft", "hfft") for inverse in ("", "i"))


@rule(*_ONE, *_TWO, *_MANY)
def transform(build: Builder, call: Call) -> Tensor | None:
    """A Fourier transform along some axes."""
    otherwise = -1 if call.name in _ONE else (-2, -1) if call.name in _TWO else None
    x, sizes, dims = build.arguments(call, "input|self", "n|s?", "dim?")
    dims = otherwise if dims is None else dims
    if dims is None and sizes is not None:
        dims = tuple(range(-len(sizes), 0))
    facts = build.again(call, call.operands[0])
    return build.mix(x, axes(dims, x.ndim), call.outputs[0].shape, **facts) if facts else None


@rule("imag", "conj", "conj_physical", "resolve_conj")
def part(build: Builder, call: Call) -> Tensor | None:
    """What is linear over the real numbers, entry by entry."""
    return real_part(build, call, build.arguments(call, "input|self")[0])


def real_part(build: Builder, call: Call, x: Tensor) -> Tensor | None:
    """An entrywise function of complex numbers that is linear over the real ones."""
    facts = build.again(call, call.operands[0])
    return build.mix(x, [], x.shape, **facts) if facts else None


@rule("view_as_real")
def pairs(build: Builder, call: Call) -> Tensor | None:
    """Real and imaginary parts along a new last axis."""
    (x,) = build.arguments(call, "input|self")
    if not (facts := build.again(call, call.operands[0])):
        return None
    run = facts["compute"]
    facts["compute"] = lambda t, *given: run(t.squeeze(-1), *given)
    return build.mix(build.reshape(x, (*x.shape, 1)), [-1], (*x.shape, 2), **facts)


@rule("view_as_complex")
def complex_numbers(build: Builder, call: Call) -> Tensor | None:
    """Complex numbers of pairs along the last axis."""
    (x,) = build.arguments(call, "input|self")
    if not (facts := build.again(call, call.operands[0])):
        return None
    run = facts["compute"]
    facts["compute"] = lambda t, *given: run(t, *given).unsqueeze(-1)
    return build.reshape(build.mix(x, [-1], (*x.shape[:-1], 1), **facts), x.shape[:-1])


@rule("complex")
def of_two_parts(build: Builder, call: Call) -> Tensor:
    """x + iy, a sum of two functions that are linear over the real numbers."""
    x, y = build.arguments(call, "real", "imag")
    real = build.mix(x, [], x.shape, compute=lambda t: torch.complex(t, torch.zeros_like(t)))
    imaginary = build.mix(y, [], y.shape, compute=lambda t: torch.complex(torch.zeros_like(t), t))
    return build.same([real, imaginary], call.outputs[0].shape)
