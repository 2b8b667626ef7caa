"""What all benches measure and report with."""
