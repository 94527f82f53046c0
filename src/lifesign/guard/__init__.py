"""Watching a running engine: the pure detector (`detector/`), the eyes it looks through (`probes/`), and the guard."""
