"""The structure of a parameter symmetry and its action."""
