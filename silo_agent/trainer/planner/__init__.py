"""The planner: what a budget buys, tried out on made data before anything private is touched."""
