"""Facts: records folded into typed events on one timeline, split into engine lives. Knows vLLM, knows no causes."""
