"""Topics, subscriptions and queues: a pure core that decides, a journal that remembers, and the shell between them."""
