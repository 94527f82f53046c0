"""Marks in the engine's log that say how far it has come. Hints for state and metrics, never evidence of death."""

from __future__ import annotations

READY_MARKS = ("Application startup complete",)
MARKS: dict[str, str] = {
    "vLLM API server version": "arguments read",
    "Initializing a V1 LLM engine": "engine starts",
    "Starting to load model": "loading weights",
    "Loading weights took": "weights loaded",
    "Model loading took": "model loaded",
    "torch.compile takes": "compiled",
    "Graph capturing finished": "graphs captured",
    "init engine": "engine initialised",
    "Starting vLLM API server": "server starts",
    "Application startup complete": "serving",
}
"""Literal -> what it means. Wording of vLLM 0.8 to 0.32; an unknown wording only costs the hint."""
