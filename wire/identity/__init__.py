"""Identities: keys, certificates, join tokens, names."""
