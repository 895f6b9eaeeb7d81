"""Means of the models of a round: the weighted mean, and robust ones, one file per mean."""
