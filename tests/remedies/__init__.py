"""Tests of the remedies room."""
