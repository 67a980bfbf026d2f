"""Certainty scores (FEDAUX): trained with noise once, released once per task."""
