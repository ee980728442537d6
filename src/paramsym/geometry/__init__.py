"""The geometry of orbits: their best points. It knows symmetries and numbers, but no network."""
