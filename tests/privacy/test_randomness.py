"""The source of keys: no two states are alike, and no seed of 32 bits leads to one."""

import pytest
import torch

from paramsym.privacy import randomness
from paramsym.privacy.randomness import secret_generator


def test_a_seed_of_a_torch_generator_counts_32_bits_alone():
    """What the module says, so that a version of PyTorch that mends it is seen."""
    one, two = (torch.Generator().manual_seed(5 + high) for high in (0, 1 << 32))
    assert torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=two))


def test_states_differ_in_every_word():
    one, two = (secret_generator().get_state()[24:5016].view(-1, 8) for _ in range(2))
    assert int((one[:, :4] != two[:, :4]).any(1).sum()) >= 620  # of 624
    assert not one[:, 4:].any()  # words of 32 bits, kept in 64
    seeded = torch.Generator().manual_seed(0x5EED).get_state()[24:5016].view(-1, 8)
    assert int((one != seeded).any(1).sum()) >= 620


def test_what_is_drawn_is_uniform_and_normal():
    generator = secret_generator()
    uniform = torch.rand(100_000, generator=generator, dtype=torch.float64)
    assert abs(float(uniform.mean()) - 0.5) < 0.01  # eleven standard deviations
    normal = torch.randn(100_000, generator=generator, dtype=torch.float64)
    assert abs(float(normal.mean())) < 0.035 and abs(float(normal.std()) - 1) < 0.025
    order = torch.randperm(1000, generator=generator)
    assert not torch.equal(order, torch.arange(1000))


def test_another_layout_of_states_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(randomness, "_START", 32)
    with pytest.raises(RuntimeError, match="keeps it otherwise"):
        secret_generator()
