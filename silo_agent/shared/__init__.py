"""Code used by both processes of a hospital, and present in both images."""
