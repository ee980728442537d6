"""Two parties compute together, each moved along the symmetry orbit; and what that hides.

    f(g·x; g·θ) = g·f(x; θ)

The owner of a key g sends g·x and g·θ and undoes g on what comes back. That obfuscates; against
whom, and until which attack, is what `audit` measures.
"""

from .attacks.attempt import Attempt as Attempt
from .attacks.attempt import NotApplicable as NotApplicable
from .plain_orders import plain_orders as plain_orders
