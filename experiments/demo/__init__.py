"""`consilium demo`: five hospitals, five learners and one federation of real processes on this machine."""
