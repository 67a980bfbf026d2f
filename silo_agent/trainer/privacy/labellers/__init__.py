"""Heads of the private labeller: models whose training itself is differentially private, one module each."""
