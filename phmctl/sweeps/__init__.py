"""Many trainings or evaluations by one command: the cells of a grid, several at once, each in a process of its own."""
