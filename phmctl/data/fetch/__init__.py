"""How a corpus comes from the network: one place in the cache for each card, HTTP, archives, the hub."""
