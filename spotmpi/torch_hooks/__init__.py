"""Where spotmpi is hooked into torch, and into libraries for it. Imports none of them."""
