"""The impure eyes of the detector: /proc, GPU counters, metrics pages, beacons. Each gives facts, none gives verdicts."""
