"""What a person runs: python -m common.programs.check, fetch, probe, weights. Training imports none of it."""
