"""The papers' tables, the demo and the benchmarks; may import every package, and no service imports it."""
