"""The soak: a federation that is killed, cut off and slowed down for hundreds of rounds, and checks of what comes out."""
