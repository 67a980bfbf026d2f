"""Rounds in motion: scheduled, closed, cached for the silos, announced to all replicas."""
