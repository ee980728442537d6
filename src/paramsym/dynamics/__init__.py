"""Training dynamics: what gradient descent conserves, and what moving along an orbit buys."""
