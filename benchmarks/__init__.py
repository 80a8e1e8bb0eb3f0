"""Benchmarks: ratios measured side by side in one run, kept with the machine in `results.md`. See `__main__`."""
