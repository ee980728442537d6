"""Keys from a seeded generator are few enough to try them all; those from a full state are not."""

import pytest
import torch

from paramsym.algebra import SignedPermutation
from paramsym.privacy import secret_generator


def drawn(generator):
    return torch.randn(50, generator=generator, dtype=torch.float64)


def test_a_seed_counts_modulo_two_to_the_thirty_two():
    few, more = (torch.Generator().manual_seed(s) for s in (7, 7 + 2**40))
    assert torch.equal(drawn(few), drawn(more))


@pytest.mark.parametrize("place", [0, 3, 8, 31])
def test_every_byte_of_the_entropy_counts(place):
    one = bytes(range(32))
    other = bytes(b ^ (k == place) for k, b in enumerate(one))
    assert torch.equal(drawn(secret_generator(one)), drawn(secret_generator(one)))
    assert not torch.isclose(drawn(secret_generator(one)), drawn(secret_generator(other))).any()


def test_two_generators_draw_different_numbers_of_the_right_kind():
    a, b = secret_generator(), secret_generator()
    first, second = (torch.rand(20_000, generator=g, dtype=torch.float64) for g in (a, b))
    assert not torch.isclose(first, second, rtol=0, atol=1e-9).any()
    for values in (first, second):
        assert abs(float(values.mean()) - 0.5) < 0.02 and abs(float(values.var()) - 1 / 12) < 0.01
        assert abs(float(torch.corrcoef(torch.stack([values[1:], values[:-1]]))[0, 1])) < 0.04
    assert torch.randperm(40, generator=a).sort().values.equal(torch.arange(40))


def test_little_entropy_is_refused():
    with pytest.raises(ValueError, match=r"8 bytes came, and at least 16 were expected.*token_byt"):
        secret_generator(b"password")


def test_seeds_are_tried_until_pixels_fall_into_their_range():
    """The search that a full state rules out, over a part of the seeds; no pair is known."""
    group, generator = SignedPermutation(12), torch.Generator()
    x = torch.rand(8, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, :5] = 0  # a margin, as images have

    def consistent(sent):
        found = []
        for seed in range(2000):
            g = group.sample(generator.manual_seed(seed), dtype=torch.float64)
            back = (sent * g.diagonal)[:, g.order.argsort()]
            if (back > -1e-9).all() and (back[:, :5].abs() < 1e-9).all():
                found.append((seed, float((back - x).abs().max())))
        return found

    def sent(generator):
        g = group.sample(generator, dtype=torch.float64)
        return x[:, g.order] * g.diagonal

    found = consistent(sent(torch.Generator().manual_seed(1234)))
    assert (1234, 0.0) in found and len(found) < 5
    assert all(error > 0.1 for _, error in consistent(sent(secret_generator(bytes(16)))))
