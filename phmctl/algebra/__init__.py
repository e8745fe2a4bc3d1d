"""Pure tensor maths of hypercomplex multiplication: rules, Kronecker sums, initialisation. Knows no model."""
