"""``decode``: lines as they come, and a file of answers."""
