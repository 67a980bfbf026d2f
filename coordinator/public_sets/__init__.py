"""Public unlabelled sets: read from common files and stored in one format."""
