import numpy as np
import pytest

from tests.equivariant.instances import GROUPS


@pytest.fixture(params=GROUPS, ids=list(GROUPS))
def group(request):
    return GROUPS[request.param][0]


@pytest.fixture(params=[0, 1], ids=["seed=0", "seed=1"])
def rng(request):
    return np.random.default_rng(request.param)
