"""`consilium agent doctor`: checks of connection, membership, environment and trainer."""
