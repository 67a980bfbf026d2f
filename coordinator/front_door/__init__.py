"""The coordinator's public ports: connections are counted by address before they reach gRPC."""
