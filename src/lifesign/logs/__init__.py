"""Logs: bytes to lines, lines to records, records to tracebacks. Knows formats, not meanings."""
