"""What a training keeps: checkpoints, and the trained model in them."""
