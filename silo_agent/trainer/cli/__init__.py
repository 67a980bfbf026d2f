"""The private side's commands, one module per group."""
