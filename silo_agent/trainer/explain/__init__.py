"""What silo.yaml's privacy settings mean and cost, in words."""
