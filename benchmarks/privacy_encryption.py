"""The row of homomorphic encryption: CKKS by TenSEAL, on a network with squares for activations.

CKKS adds and multiplies vectors of approximate numbers under encryption (Cheon, Kim, Kim and Song,
ASIACRYPT 2017). It knows no comparison, so that ReLU is out; z² takes one multiplication. Ring
dimension 8,192 and a modulus of 216 bits are within the 218 that the homomorphic encryption
standard gives for 128 bits against classical attacks on ternary secrets; three levels are used.
Against an evaluator who is shown decrypted answers, that estimate does not hold for plain CKKS (Li
and Micciancio, EUROCRYPT 2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from privacy_ways import State, Way
from torch import Tensor

DIMENSION = 8192
MODULI = (54, 36, 36, 36, 54)
SCALE = 2.0**36
SLOTS = DIMENSION // 2


def reason() -> str | None:
    """Why there is no such row, if there is none."""
    try:
        import tenseal  # noqa: F401
    except ImportError as error:
        return f"left out: homomorphic encryption: {error}; pip install tenseal"
    return None


def _contexts(rotations: bool) -> tuple[Any, Any, int]:
    """The owner's context, the evaluator's without the secret key, and the bytes of the latter."""
    import tenseal

    owner = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, DIMENSION, coeff_mod_bit_sizes=[*MODULI], n_threads=1
    )
    owner.global_scale = SCALE
    if rotations:
        owner.generate_galois_keys()
    public = owner.serialize(save_secret_key=False, save_galois_keys=rotations)
    return owner, tenseal.context_from(public, n_threads=1), len(public)


def _layers(state: State) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """(W₁ b₁)ᵀ, W₂ᵀ and b₂: the first bias by a constant entry of the input.

    A product with a matrix needs the vector repeated in all slots; TenSEAL adds a plain vector to
    the first copy alone (issue 462), and the product after it is wrong by as much as the bias.
    """
    w1, b1, w2, b2 = (value.double() for value in state.values())
    return torch.cat([w1, b1[:, None]], 1).T.tolist(), w2.T.tolist(), b2.tolist()


def one_by_one(state: State) -> Way:
    """One query in one ciphertext; rotations sum over its slots."""
    import tenseal

    owner, public, set_up = _contexts(rotations=True)
    first, second, bias = _layers(state)

    def send(x: Tensor) -> bytes:
        (row,) = x.double().tolist()
        return tenseal.ckks_vector(owner, [*row, 1.0]).serialize()

    def answer(data: bytes) -> bytes:
        hidden = tenseal.ckks_vector_from(public, data).mm(first)
        hidden.square_()
        return (hidden.mm(second) + bias).serialize()

    def read(data: bytes) -> Tensor:
        return torch.tensor([tenseal.ckks_vector_from(owner, data).decrypt()])

    return Way("CKKS, one query", "evaluator", set_up, send, answer, read, _bytes, None, state)


def together(state: State) -> Way:
    """As many queries as slots: one ciphertext for each of 65 entries of the input."""
    import tenseal

    owner, public, set_up = _contexts(rotations=False)
    first, second, bias = _layers(state)

    def send(x: Tensor) -> bytes:
        padded = torch.ones(SLOTS, x.shape[1] + 1, dtype=torch.float64)
        padded[: len(x), :-1] = x
        return tenseal.ckks_tensor(owner, padded[:, None].tolist(), batch=True).serialize()

    def answer(data: bytes) -> bytes:
        hidden = tenseal.ckks_tensor_from(public, data).mm(first)
        hidden.square_()
        return (hidden.mm(second) + [bias]).serialize()

    def read(data: bytes) -> Tensor:
        return torch.tensor(tenseal.ckks_tensor_from(owner, data).decrypt().tolist())[:, 0]

    name = f"CKKS, {SLOTS:,} queries"
    return Way(name, "evaluator", set_up, send, answer, read, _bytes, None, state, batch=SLOTS)


def _bytes(data: bytes) -> Tensor:
    """A ciphertext as the numbers that its bytes are, in [0, 1]: every 64th, to be quick."""
    return torch.from_numpy(np.frombuffer(data, np.uint8)[:250_000:64].astype(np.float32) / 255)[
        None
    ]
