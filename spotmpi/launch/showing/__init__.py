"""What people and other programs see of a job while it runs."""
