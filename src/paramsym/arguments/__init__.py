"""What is given to public functions: wrappers are opened, and what is of a wrong kind is told."""

from .door import WrongKind as WrongKind
from .door import at as at
from .door import behind_doors as behind_doors
from .door import checked as checked
from .door import door as door
from .wrappers import module_of as module_of
from .wrappers import optimizer_of as optimizer_of
