"""A hub on top of a broker: the logs behind its topics, its durable subscriptions, and authentication."""
