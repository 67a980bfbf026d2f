"""Privacy on the private side: mechanisms, the ledger, what a budget buys."""
