"""A source of keys that nobody can try out.

PyTorch's generator on a CPU is a Mersenne twister of 624 words that is seeded with one of them:
`manual_seed(s)` keeps s mod 2³², and so does `seed()`. A key from it is one of 2³², whatever group
it comes from, and who knows how keys are drawn tries all of them on a few samples: a pixel that
leaves its range says that a seed is wrong.
"""

from __future__ import annotations

import secrets
from hashlib import shake_256

import torch

_WORDS, _BYTES, _OFFSET = 624, 8, 24  # each word of 32 bits is kept in one of 64
_MARK = 0x5EEDED42


def secret_generator(entropy: bytes | None = None) -> torch.Generator:
    """A generator on the CPU with a state of 19,968 bits, filled from 256 bits of the system's own.

    It is a Mersenne twister all the same, and no cryptographic generator: who learns enough of what
    it drew can tell what it draws next. Take a new one for each key.

    Args:
        entropy: at least 16 bytes that nobody else knows, for a key that can be drawn again;
            by default 32 from the operating system.

    Raises:
        ValueError: the entropy is shorter than 16 bytes.
        RuntimeError: this version of PyTorch keeps its state in another form.

    Source: Matsumoto and Nishimura, Mersenne Twister, 1998; SHAKE-256 (FIPS 202) fills the state.
    """
    entropy = secrets.token_bytes(32) if entropy is None else entropy
    if len(entropy) < 16:
        raise ValueError(
            f"secret_generator(entropy=…): {len(entropy)} bytes came, and at least 16 were "
            "expected, so that nobody can try them all. Pass secrets.token_bytes(32), or nothing."
        )
    generator = torch.Generator().manual_seed(_MARK)
    state = generator.get_state().clone()
    words = state[_OFFSET : _OFFSET + _WORDS * _BYTES].view(torch.int64)
    if len(words) != _WORDS or int(words[0]) != _MARK:
        raise RuntimeError(
            f"secret_generator: the state of torch.Generator of PyTorch {torch.__version__} does "
            f"not hold the seed in byte {_OFFSET}, where its {_WORDS} words were expected. Nothing "
            "was drawn. Use a version of PyTorch that the tests of this one pass with."
        )
    stream = shake_256(entropy).digest(4 * _WORDS)
    drawn = torch.frombuffer(bytearray(stream), dtype=torch.int32).to(torch.int64)
    words.copy_(drawn & 0xFFFFFFFF)
    generator.set_state(state)
    return generator
