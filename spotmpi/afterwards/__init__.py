"""What a trace tells its reader when the training is over: checked, drawn, explained, reported."""
