# Each target sets up the virtual environment it needs. The README lists the plain commands.
PYTHON ?= python3

.PHONY: demo compare docs test test-report quick test-faults test-slow simulate mutants benchmark gpu-evidence nodes

compare: .venv/installed
	.venv/bin/python compare_parallel.py --dataset synthetic-cifar10 --model lenet --epochs 2 --check-maths

# A shorter comparison, in about 15 seconds: three methods and few steps.
demo: .venv/installed
	.venv/bin/python compare_parallel.py --dataset synthetic-cifar10 --model lenet --epochs 1 --max-steps 25 --warmup 4 \
	  --methods single single-all-cores ddp --repeats 3 --check-maths --output-dir figures/demo

test: .venv/installed-dev
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy
	.venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow and not fault"

# Tests of what a comparison plans, concludes and shows, in half a minute. They do not import torch.
test-report: .venv/installed-dev
	.venv/bin/python -m pytest -n 2 -m "not process" tests/judge tests/plan tests/show

# Tests that start no program of the suite, in two minutes.
quick: .venv/installed-dev
	.venv/bin/python -m pytest -n 2 -m "not slow and not fault and not process"

# Inject every fault, and write the outcomes to figures/faults/faults.json.
test-faults: .venv/installed-dev
	mkdir -p figures/faults
	FAULTS_JSON=figures/faults/faults.json .venv/bin/python -m pytest -m fault

# Slow tests: whole comparisons, real plants, resumed trainings.
test-slow: .venv/installed-dev
	.venv/bin/python -m pytest -m "slow and not fault"

# Faults in trainings on three nodes, which are namespaces (needs root and SLURM): make nodes EPISODES=100 SEED=1
EPISODES ?= 100
SEED ?= 1
nodes: .venv/installed-dev
	.venv/bin/python tests/nodes.py --episodes $(EPISODES) --seed $(SEED) --output figures/faults/nodes.json

# Whole comparisons on a simulated machine, with random faults: make simulate SCHEDULES=100000 SEED=1
SCHEDULES ?= 10000
simulate: .venv/installed-dev
	.venv/bin/python tests/simulate.py --schedules $(SCHEDULES) --seed $(SEED)

# Mutation testing: plant mistakes and list those that no test detects. SEED=2 plants others.
mutants: .venv/installed-dev
	.venv/bin/python tests/mutants.py $(SEED)

# All benchmarks: figures/benchmark/ and docs/performance.md. EXAMPLE=path/to/mnist/main.py of PyTorch's examples,
# MINUTES=8 per benchmark. Resumes what was stopped, unless ANEW=1.
benchmark: .venv/installed-dev
	.venv/bin/python benchmarks/benchmark.py $(if $(EXAMPLE),--example $(EXAMPLE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(ANEW),--anew)

# Update the schemas and tables in the documentation.
docs: .venv/installed-dev
	.venv/bin/python benchmarks/docs.py

# Run everything that needs a GPU, and write it to figures/gpu-NAME/. STEP=roofline runs only that step.
gpu-evidence: .venv/installed-dev
	.venv/bin/python benchmarks/gpu_evidence.py $(if $(STEP),--step $(STEP))

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	.venv/bin/pip install -r requirements-dev.txt
	touch $@
