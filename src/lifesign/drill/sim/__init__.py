"""The detector's bench: engines in virtual time, disturbances that heal, faults that don't, and detectors that judge.

Every detector, ours included, sees the same traces. `world` holds the assumptions, `traces` makes the traces, `rivals`
are the detectors that others use, `eyes` lets the production core look at a trace, `runner` counts.
"""
