"""Attacks on classifiers and on ensembles of them, and the accuracy that is left of all of them."""
