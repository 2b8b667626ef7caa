"""Arrays as rounds need them: flat buckets and the user's structure as views of them."""
