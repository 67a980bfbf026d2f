"""Thin servicers: they translate between the wire and the store, and decide nothing; and what every call passes first."""
