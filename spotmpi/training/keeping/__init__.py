"""What is kept of a training: checkpoints, and the trained model."""
