"""The Google Google Pub/Sub API: unmodified Pub/Sub clients work against a Penstock broker, over gRPC and over REST."""
