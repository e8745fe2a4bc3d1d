"""Tensor mathematics of PHM: rules, Kronecker sums, bilinear rank, initialisation."""
