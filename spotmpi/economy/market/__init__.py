"""What nodes cost, how many there are, and how long they live."""
