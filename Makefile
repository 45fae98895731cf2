# `make compare` and `make test` do all the set-up they need; the README has the same as plain commands.
PYTHON ?= python3

.PHONY: demo compare docs test test-faults test-slow fuzz mutants benchmark gpu-evidence

compare: .venv/installed
	.venv/bin/python compare_parallel.py --dataset synthetic-cifar10 --model lenet --epochs 3 --check-maths

# The same in less than a minute, with three methods and few steps.
demo: .venv/installed
	.venv/bin/python compare_parallel.py --dataset synthetic-cifar10 --model lenet --epochs 2 --max-steps 25 \
	  --methods single single-all-cores ddp --repeats 3 --check-maths --output-dir figures/demo

test: .venv/installed-dev
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy
	.venv/bin/python -m pytest -n 2 -m "not slow and not fault"

# Every fault is injected; figures/faults/faults.json gets what came of each.
test-faults: .venv/installed-dev
	mkdir -p figures/faults
	FAULTS_JSON=figures/faults/faults.json .venv/bin/python -m pytest -m fault

# What takes longer: whole comparisons, real plants, steady resumes.
test-slow: .venv/installed-dev
	.venv/bin/python -m pytest -m "slow and not fault"

# Random faults for so many seconds: make fuzz SECONDS=600 SEED=1
SECONDS ?= 600
SEED ?= 1
fuzz: .venv/installed-dev
	.venv/bin/python tests/fuzz.py --seconds $(SECONDS) --seed $(SEED)

# Plant mistakes in what computes and shows, and list those that no test sees. SEED=2 plants others.
mutants: .venv/installed-dev
	.venv/bin/python tests/mutants.py $(SEED)

# How fast the suite is, beside other loops: figures/benchmark/ and docs/performance.md. EXAMPLE=path/to/mnist/main.py
# MINUTES of each (8); what was stopped goes on, but with ANEW=1
benchmark: .venv/installed-dev
	.venv/bin/python benchmarks/benchmark.py $(if $(EXAMPLE),--example $(EXAMPLE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(ANEW),--anew)

# What the pages hold of code and results: schemas and tables, written anew.
docs: .venv/installed-dev
	.venv/bin/python benchmarks/docs.py

# On a machine with a GPU: all that is to be seen there, into figures/gpu-NAME/. STEP=roofline for one step alone.
gpu-evidence: .venv/installed-dev
	.venv/bin/python benchmarks/gpu_evidence.py $(if $(STEP),--step $(STEP))

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	.venv/bin/pip install -r requirements-dev.txt
	touch $@
