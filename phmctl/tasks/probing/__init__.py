"""Probing: what a frozen encoder knows of its sentences, read by a perceptron."""
