"""Keys, and the subgroups that they are drawn from: what training and its loss commute with."""
