"""One worker's training: the trainer, its session with the others, and what it keeps."""
