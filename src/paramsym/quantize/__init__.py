"""Equivalent weights that lose less when they are rounded. It knows grids, but no network."""
