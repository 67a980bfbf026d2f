"""What the doctor looks at on the network side, one module per kind of thing."""
