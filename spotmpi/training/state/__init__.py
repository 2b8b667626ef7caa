"""What one worker trains, and how far it has come."""
