"""Data planes: how members of a job sum arrays (`plane` has their common interface)."""
