"""What stands before a handler's calls: a gate with its circuit breaker and its rate limit."""
