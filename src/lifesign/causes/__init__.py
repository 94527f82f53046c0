"""Causes: one file of rules (`NAME.py`) and one page (`NAME.md`) each. See CONTRIBUTING.md for how to add one."""
