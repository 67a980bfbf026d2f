"""What both ends must agree on about privacy: what happened, what it costs, what is said of it, exact noise."""
