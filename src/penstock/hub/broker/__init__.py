"""A hub beside a broker: the logs behind its topics, its durable subscriptions, and who may come in."""
