"""Feature extractors trained on a public set alone: the only models that travel, and only downwards."""
