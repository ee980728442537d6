"""A hidden layer as an ensemble holds it: copied with it, left out of what is pickled.

The site knows the traced network, with functions that no pickle can name. Members are evaluated
without it once their corrections are fitted.
"""

from __future__ import annotations

import copy
from typing import Any

from paramsym.checking.pointwise import PointwiseSite


class HeldSite:
    """A site, or nothing after unpickling.

    Args:
        site: of the hidden layer; None where it was left out.
        needed: whether members cannot be evaluated without it, as those of `correction="batch"`.
    """

    def __init__(self, site: PointwiseSite | None, needed: bool):
        self._site, self._needed = site, needed

    def get(self) -> PointwiseSite:
        """The site.

        Raises:
            RuntimeError: it was left out when the ensemble was pickled.
        """
        if self._site is None:
            raise RuntimeError(  # an AttributeError would be taken by nn.Module
                "OrbitEnsemble.site: this ensemble was unpickled; a site is expected only where "
                "it was made, since a traced network cannot be pickled. Members, votes and attacks "
                "do not need it. Make the ensemble anew for the site."
            )
        return self._site

    def __deepcopy__(self, memo: dict[int, Any]) -> HeldSite:
        return HeldSite(copy.deepcopy(self._site, memo), self._needed)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._needed:
            raise TypeError(
                "OrbitEnsemble(correction='batch'): this ensemble came to be pickled; one with a "
                "correction that is fitted was expected, since the published wrapper needs the "
                "traced network for each batch. Make it anew from the model and a seed."
            )
        return HeldSite, (None, False)
