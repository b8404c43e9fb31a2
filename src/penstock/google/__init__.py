"""The Google Pub/Sub door: unmodified Pub/Sub clients work against a Penstock broker, over gRPC and over REST."""
