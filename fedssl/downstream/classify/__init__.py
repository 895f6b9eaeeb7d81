"""Classify images: train a head on the features of a few labelled images, and use it."""
