"""From a lowered network to its parameter symmetry: what may act on what is counted."""
