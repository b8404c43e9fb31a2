"""What every source of the router promises, as checks that run against each of them."""
