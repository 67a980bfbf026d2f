"""Outgoing connections: addresses, proxies, TLS channels, enrolment and renewal. The private side may not import this package."""
