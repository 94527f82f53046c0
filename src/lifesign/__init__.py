"""lifesign: names the root cause of a vLLM engine death and tells a slow engine from a dead one."""

__version__ = "0.1.0"
