"""A router beside a broker: sources over Penstock's own queues, here or at a server, and where a router's records are kept."""
