"""What would stop an engine on this machine, found before it is started. `plan.run` asks every check in turn."""
