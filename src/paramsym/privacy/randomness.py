"""Random numbers for keys that nobody can count through.

`torch.Generator().manual_seed(s)` uses the lowest 32 bits of s alone on a processor: whoever knows
how a key was drawn tries 4·10⁹ seeds and has it. Here the whole state of the Mersenne twister comes
from the operating system, 19,937 bits. The twister itself is linear over the bits and was made for
statistics: who recovers some of the numbers of a key may compute the others, so that each key is
drawn from a generator of its own.
"""

from __future__ import annotations

import secrets

import torch

_WORDS = 624  # of the Mersenne twister, 32 bits each, kept in 64
_START = 24  # bytes in front of them: seed, how many are left, whether it was seeded, next
_SIZE = 5056  # bytes of the whole state


def secret_generator() -> torch.Generator:
    """A generator in a state that the operating system drew; another one at each call.

    Returns:
        On the CPU. It is as secret as its state: do not seed it, and draw one key from it.

    Raises:
        RuntimeError: this version of PyTorch keeps its state otherwise than the versions known.
    """
    generator = torch.Generator()
    state = generator.manual_seed(0x5EED).get_state()
    first = int.from_bytes(bytes(state[_START : _START + 8].tolist()), "little")
    if len(state) != _SIZE or first != 0x5EED:
        raise RuntimeError(
            f"secret_generator(): the state of a generator has {len(state)} bytes and begins with "
            f"{first:#x}, and {_SIZE} bytes that begin with the seed were expected. This version "
            "of PyTorch keeps it otherwise. Pass a generator of your own to Key.generate."
        )
    words = torch.zeros(_WORDS, 8, dtype=torch.uint8)
    words[:, :4] = torch.tensor([*secrets.token_bytes(4 * _WORDS)], dtype=torch.uint8).view(-1, 4)
    state[_START : _START + 8 * _WORDS] = words.flatten()
    generator.set_state(state)
    return generator
