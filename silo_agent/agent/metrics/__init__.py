"""The agent's Prometheus metrics."""
