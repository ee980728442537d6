"""The forms in which the change of basis on one class of orbits can be computed.

Each is one class with one interface (`base.Form`): the same pair of maps to rounding, at another
cost. `choice.choose` takes the cheapest by measured constants.
"""
