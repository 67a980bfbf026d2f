"""Feature extractors trained on a public set alone: the only models that travel, and only downwards."""

from silo_agent.trainer.models.extractors.loading import StoredExtractor, load
from silo_agent.trainer.models.extractors.protocol import Extractor

__all__ = ["Extractor", "StoredExtractor", "load"]
