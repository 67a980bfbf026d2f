"""A hospital: `shared` is in both processes, `agent` is the network side, `trainer` the private side."""
