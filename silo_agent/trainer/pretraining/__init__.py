"""Extractors pretrained on public rows: `python -m silo_agent.trainer.pretraining`."""
