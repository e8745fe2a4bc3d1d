"""Pure tensor maths: rules, Kronecker sums, bilinear rank, initialisation."""
