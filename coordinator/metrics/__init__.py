"""What Prometheus reads of the coordinator."""
