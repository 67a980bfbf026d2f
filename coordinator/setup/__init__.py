"""What an operator does to a coordinator's folder: make it, admit an admin again, back it up."""
