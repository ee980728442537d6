"""Where weights come from: one checkpoint held against another, up to the symmetry of both."""
