"""Ensembles along data-dependent orbits, and what attacks leave of them."""
