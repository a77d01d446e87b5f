# The README begins with `make demo`, `make test` and `make test-clusters`; all do all set-up by themselves.
.DEFAULT_GOAL := help
PY := .venv/bin/python
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export RAY_USAGE_STATS_ENABLED := 0
# Containers set it to keep images small. Here hundreds of processes would each compile what they import, and pytest's
# four workers each rewrite every test: to collect them took 61 s of CPU with it, 33 without (2 cores, 9,844 tests).
unexport PYTHONDONTWRITEBYTECODE
TRACE ?=

.PHONY: help setup criu demo test test-clusters hunts check ci bench bench-storage bench-preempt bench-policy gpu-bundle kills sim guards sim-guards chaos soak evidence clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.venv/.ready: pyproject.toml
	@test -x $(PY) || python3 -m venv .venv
	@$(PY) -m uv --version >/dev/null 2>&1 || .venv/bin/pip install -q uv
	@. .venv/bin/activate && uv pip install -q --compile-bytecode -e '.[cpu,dev]' || { \
	  echo "Set-up failed. If the package index at hand has no CPU build of torch 2.13, name one that has: UV_EXTRA_INDEX_URL=<url> make $(MAKECMDGOALS)"; exit 1; }
	@touch $@

setup: .venv/.ready ## make .venv with everything in it

criu: ## put a CRIU that works on this kernel into .criu, for images of process trees and their tests
	.ci/get-criu .criu

demo: setup ## one tide on this machine's CPU, with 3 logical GPUs; TRACE=file.parquet replays real traffic
	$(PY) -m benchmarks.demo $(if $(TRACE),--trace $(TRACE))

# Many tests have processes, clocks and deadlines, and a shared machine stalls. With TRIES=2 what failed is run a second
# time, alone; a test that passes only then is a defect of its own, and is named.
TRIES ?= 1

test: setup ## all tests that need neither a GPU nor a Ray cluster, long ones in a short form
	$(PY) -m ci test --tries $(TRIES)

test-clusters: setup ## those with a real Ray cluster, a process for each module
	$(PY) -m ci clusters --tries $(TRIES)

hunts: setup ## what takes too long for that, in its long form; MINUTES=20
	$(PY) -m ci hunts --tries $(TRIES) $(if $(MINUTES),--minutes $(MINUTES))

check: setup ## format, lint, types, import contracts, guards, file lengths
	$(PY) -m ci check

ci: setup ## what CI runs: all of the above within CI_MINUTES=70
	$(PY) -m ci run --tries $(TRIES)

# Long runs go on where they stopped: MINUTES=20 measures what is missing or stale, the stalest first, for so long.
ONLY_STALE = $(if $(MINUTES),--minutes $(MINUTES))

bench: setup ## measure the line; the result goes to benchmarks/results/line.json
	$(PY) -m benchmarks.line $(ONLY_STALE)

bench-storage: setup ## measure bulk reads, writes and engine starts; benchmarks/results/storage.json; 40 GB of disk, fio; ONLY=reads
	$(PY) -m benchmarks.bulk $(if $(ONLY),--only $(ONLY)) $(ONLY_STALE)

gpu-bundle: setup ## what a bare GPU machine needs, in parts; DIR=folder PART_MB=58 PYTHON=3.12 TORCH=2.11+cu130 SM=90 GLIBC=2.35
	$(PY) -m benchmarks.gpu.bundle $(DIR) $(if $(PART_MB),--part-mb $(PART_MB)) $(if $(PYTHON),--python $(PYTHON)) \
	  $(if $(TORCH),--torch $(TORCH)) $(if $(SM),--sm $(SM)) $(if $(GLIBC),--glibc $(GLIBC))

bench-preempt: setup ## measure every way to leave a slot; benchmarks/results/preempt.json; 20 GB of RAM and disk; ONLY=2GB
	$(PY) -m benchmarks.preempt $(if $(ONLY),--only $(ONLY)) $(ONLY_STALE)

bench-policy: setup ## our policy against others on recorded traffic; benchmarks/results/policy.json; TRACES=folder QUICK=1 ONLY=part
	$(PY) -m benchmarks.policy --traces $(or $(TRACES),traces) $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) $(ONLY_STALE)

sim: setup ## the arbiter through seeded faults, without processes; every promise after each event; SEEDS=2000 FIRST=0
	$(PY) -m tests.autoscaler.sim --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0) \
	  --out benchmarks/results/sim.json $(ONLY_STALE)

guards: setup ## each guard taken out of the source, until its test fails; results/guards.json and docs/guards.md
	$(PY) -m evidence.guards run --out benchmarks/results/guards.json $(if $(ONLY),--only '$(ONLY)') $(ONLY_STALE)
	$(PY) -m evidence.guards page

sim-guards: setup ## each guard of the policy removed once, until a seed of the above fails; SEEDS=100
	$(PY) -m tests.autoscaler.guards --seeds $(or $(SEEDS),100)

kills: setup ## kill -9 every process in every move on two nodes; the table goes to benchmarks/results/kills.json
	$(PY) -m tests.integration.kills --out benchmarks/results/kills.json $(ONLY_STALE)

chaos: setup ## random kills, pauses, power cuts, drains and tides; MINUTES=30, its stalest seeds; SEED=n, that one alone
	$(PY) -m tests.integration.kills.play --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

soak: setup ## chaos with an eye on everything that could grow; MINUTES=60 SEED=n
	$(PY) -m tests.integration.kills.play --soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

evidence: setup ## what of all these results is fresh, stale and missing, and how long the rest would take
	$(PY) -m evidence show $(if $(LIST),--list)

clean: ## remove what runs and tests left; keeps .venv
	rm -rf out dist .hypothesis .mypy_cache .ruff_cache .import_linter_cache .pytest_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
