"""Training that knows the orbit: rebalancing, and a penalty that is one number on it."""

from .penalty import orbit_penalty as orbit_penalty
from .rebalance import Rebalance as Rebalance
from .result import Rebalanced as Rebalanced
