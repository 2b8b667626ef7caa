"""What a run did: its records, the truth that follows from them, and plots."""
