"""A person's decision on a task, the policy that may decide for them, and the record of both."""
