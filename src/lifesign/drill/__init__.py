"""Drills: make an engine die in a known way, on purpose, and check that the diagnosis names what was done.

`vocabulary` says what can go wrong, as data. `engines` starts a real vLLM or the built-in `fake` one, `inject` breaks it,
`runner` watches it die and compares, `report` and `record` keep the result. Nothing here is imported by the rest of lifesign.
"""
