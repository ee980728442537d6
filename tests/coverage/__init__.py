"""Code as people write it: each spelling has its freedom found and accounted for."""
