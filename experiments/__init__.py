"""The papers' tables, the demo and the benchmarks; imports every room, imported by none."""
