"""The private side: data, training and votes, reached over a Unix socket only."""
