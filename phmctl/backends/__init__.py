"""What stands between the maths and torch: operators of our own, libraries that multiply, choices that are measured."""
