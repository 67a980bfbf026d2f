"""The consortium's service: thin servicers around a pure round engine, pure consensus rules and a store."""
