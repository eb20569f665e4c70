"""SoteriaFL on Flower."""
