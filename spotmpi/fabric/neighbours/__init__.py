"""Memory that workers of one host share, and what they show each other in it."""
