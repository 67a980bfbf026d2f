"""What a task is: its immutable definition, the methods' settings, the rule of consensus, and all of it in words."""
