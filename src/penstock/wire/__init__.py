"""The native protocol: frames, results and addresses, shared by the client and the server."""
