"""The command line: one file per command. The only room that prints and that knows exit codes."""
