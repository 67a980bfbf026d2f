"""The agent's audit record: what it sent and received, with the receipts that prove it."""
