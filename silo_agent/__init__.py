"""A hospital: the network side here, the private side in `trainer`, `models` and `privacy`."""
