"""Learning a multiplication rule from examples: Figure 2 of the PHM paper, and octonions beyond it."""
