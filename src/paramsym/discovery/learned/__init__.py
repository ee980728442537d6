"""Symmetries learned from samples: generators and an action network, trained on one objective.

Each term of the objective has a file of its own; `objective` adds them up, `training` minimises,
and `measures` tells what the objective does not: the error at finite elements, and the angles.
"""

from .fields import matrix_action as matrix_action
from .learned import Learned as Learned
from .measures import Report as Report
from .objective import DATA_DEPENDENT as DATA_DEPENDENT
from .objective import HOMOGENEOUS as HOMOGENEOUS
from .objective import Weights as Weights
from .objective import terms_on as terms_on
from .problem import Problem as Problem
from .problem import Samples as Samples
from .problem import layered as layered
from .training import Schedule as Schedule
from .training import learn as learn
