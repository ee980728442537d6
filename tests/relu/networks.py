"""Random networks for the tests: generic rationals, small integers, type A and type B."""

from __future__ import annotations

import random

import numpy as np
from flint import fmpq, fmpq_mat

from paramsym.relu import Network
from paramsym.relu.network import FloatLayer, Layer
from paramsym.relu.randomness import generic
from paramsym.relu.rationals import matrix, rows


def random_network(widths, rng: random.Random, integers: bool = False) -> Network:
    def entry() -> fmpq:
        return fmpq(rng.randint(-2, 2)) if integers else generic(rng)

    layers = []
    for d, n in zip(widths, widths[1:], strict=False):
        table = fmpq_mat(n, d, [entry() for _ in range(n * d)])
        layers.append(Layer(table, [entry() for _ in range(n)]))
    return Network(exact=layers)


def type_b(widths, rng: random.Random, reflective: bool = True) -> Network:
    net = random_network(widths, rng)
    j = rng.randrange(widths[1])
    table = [
        [abs(x) if k == j else -abs(x) for k, x in enumerate(row)]
        for row in rows(net.exact[1].weight)
    ]
    for k in range(widths[1]):
        if reflective and k != j and rng.random() < 0.5:
            ratio = generic(rng, True)
            for row in table:
                row[k] = -ratio * row[j]
    bias = [-abs(x) for x in net.exact[1].bias]
    return Network(exact=[net.exact[0], Layer(matrix(table, widths[1]), bias), net.exact[2]])


def type_a(widths, rng: random.Random, linear: int | None = None) -> Network:
    net = random_network(widths, rng)
    count = rng.randint(0, widths[2]) if linear is None else linear
    w, b = rows(net.exact[1].weight), list(net.exact[1].bias)
    for i in range(count):
        w[i], b[i] = [abs(x) for x in w[i]], abs(b[i])
    return Network(exact=[net.exact[0], Layer(matrix(w, widths[1]), b), net.exact[2]])


def perturbed(net: Network, size: fmpq, rng: random.Random, layer: int | None = None) -> Network:
    k = rng.randrange(len(net)) if layer is None else layer
    layers = [Layer(part.weight, list(part.bias)) for part in net.exact]
    weight, bias = rows(layers[k].weight), layers[k].bias
    i = rng.randrange(len(bias))
    j = rng.randrange(len(weight[i]) + 1)
    if j == len(weight[i]):
        bias[i] += size
    else:
        weight[i][j] += size
    layers[k] = Layer(matrix(weight, net.widths[k]), bias)
    return Network(exact=layers)


def rounded(net: Network) -> Network:
    return Network(floats=[FloatLayer(w.copy(), b.copy()) for w, b in net.floats])


def gaussian(widths, rng: np.random.Generator) -> Network:
    return Network(
        floats=[
            FloatLayer(rng.normal(size=(n, d)) / np.sqrt(d), rng.normal(size=n) * 0.1)
            for d, n in zip(widths, widths[1:], strict=False)
        ]
    )


def twin(net: Network, rng: np.random.Generator, dyadic: bool = False) -> Network:
    layers = [(w.copy(), b.copy()) for w, b in net.floats]
    for k in range(len(layers) - 1):
        (w, b), (v, e) = layers[k], layers[k + 1]
        s = 2.0 ** rng.integers(-3, 4, len(b)) if dyadic else np.exp(rng.normal(size=len(b)))
        order = rng.permutation(len(b))
        layers[k], layers[k + 1] = (s[:, None] * w[order], s * b[order]), (v[:, order] / s, e)
    return Network(floats=[FloatLayer(w, b) for w, b in layers])


def rational_point(d: int, rng: random.Random) -> list[fmpq]:
    return [fmpq(rng.randint(-9999, 9999), rng.randint(1, 999)) for _ in range(d)]
