"""What runs where the workers are: the agent, the wrappers, the workers."""
