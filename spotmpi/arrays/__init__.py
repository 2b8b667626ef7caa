"""Arrays in the form that rounds need: flat buckets, and the user's structure as views of them."""
