"""What a person runs: python -m common.programs.check, fetch, model, probe, weights. Training imports none of it."""
