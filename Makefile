# `make compare` and `make test` do all the set-up they need; the README has the same as plain commands.
PYTHON ?= python3

.PHONY: compare test

compare: .venv/installed
	.venv/bin/python compare_parallel.py --dataset synthetic-cifar10 --model lenet --epochs 3

test: .venv/installed-dev
	.venv/bin/ruff check .
	.venv/bin/python -m pytest

.venv/installed: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	.venv/bin/pip install -r requirements-dev.txt
	touch $@
