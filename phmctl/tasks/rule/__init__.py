"""Learning a multiplication rule from examples."""
