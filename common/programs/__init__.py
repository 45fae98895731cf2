"""Command-line programs: python -m common.programs.check, fetch, model, probe or weights. Training imports none."""
