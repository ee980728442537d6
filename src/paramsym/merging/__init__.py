"""One network from several of one architecture: align, interpolate, repair what averaging lost."""
