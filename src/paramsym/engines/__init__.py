"""Where tasks that do not depend on each other run: on this machine, or on an engine that exists.

An `Engine` maps a function over tasks and gives each result as it is ready, with the place of its
task. `Local` does so with threads or processes, `OnRay` on a cluster, whose retries, placement and
object store do the rest: there is no scheduler of ours. Tasks may run twice where a machine is
lost, so that a task must be idempotent: what it writes, it writes under another name and renames.
"""

from .choosing import engine_of as engine_of
from .engine import Engine as Engine
from .local import Local as Local
from .on_ray import OnRay as OnRay
