"""The Google Pub/Sub API: unmodified Pub/Sub clients use a Penstock broker, over gRPC and over REST."""
