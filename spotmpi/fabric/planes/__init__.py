"""Data planes: how what workers bring is summed (`plane` says what they have in common)."""
