"""The launcher: one job from its start to its end, its hosts, its workers, its output."""
