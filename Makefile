# Two commands do all set-up on a machine with Python 3.11, make and pip: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
SILOS ?= 20
ROUNDS ?= 200
SHARE ?= 1
HELM ?= helm
CONTAINERS ?= docker

.DEFAULT_GOAL := help
.PHONY: help demo unit test test-system charts charts-files images images-gpu images-gpu-test deploy-test lint protos bench soak mutants experiments clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp per extra; it is remade when pyproject.toml changes, so a second run starts at once.
$(VENV)/.demo: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## Five hospitals, five learners, one federation on this machine (SEED=1)
	$(BIN)/consilium demo --seed $(SEED)

# It wants an older cryptography than ours, hence an environment of its own.
$(VENV)/sslyze/.done: $(VENV)/.dev
	@test -x $(VENV)/sslyze/bin/python || $(BIN)/python -m venv $(VENV)/sslyze
	$(VENV)/sslyze/bin/pip install --quiet --disable-pip-version-check 'sslyze>=6.3,<7'
	@touch $@

unit: $(VENV)/.dev ## The fast tier: pure tests without processes, PostgreSQL or torch, under a minute
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --fast --durations 5 tests/unit

# Most of them wait for processes they started, hence two at a time; those of a file stay together.
test: $(VENV)/.dev $(VENV)/sslyze/.done ## Every test that needs nothing but Python packages
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-system: $(VENV)/.dev ## Tests against programs of the system; installs them with apt (Debian, as root)
	@command -v tinyproxy >/dev/null && command -v promtool >/dev/null \
		|| { apt-get update -qq && apt-get install -qq --yes --no-install-recommends tinyproxy prometheus; }
	$(BIN)/python -m pytest tests/system

# Kubernetes' schemas are large and nothing else needs them, hence an environment of its own.
$(VENV)/charts/.done: $(VENV)/.dev
	@test -x $(VENV)/charts/bin/python || $(BIN)/python -m venv $(VENV)/charts
	$(VENV)/charts/bin/pip install --quiet --disable-pip-version-check 'kubernetes-validate>=1.37,<2' pyyaml
	@touch $@

charts: $(VENV)/charts/.done ## Lint, render (the whole matrix) and check both charts (HELM=helm)
	HELM=$(HELM) KUBERNETES_VALIDATE=$(abspath $(VENV)/charts/bin/python) $(BIN)/python -m pytest tests/deploy/test_charts*.py

charts-files: ## Copy alerts and dashboards into the charts, which read nothing outside themselves
	@for side in coordinator:consortium silo:hospital; do \
		files=helm/$${side%:*}/files && rm -rf $$files/dashboards && cp -r docker/grafana/dashboards/$${side#*:} $$files/dashboards \
		&& cp docker/prometheus/$${side#*:}/alerts.yaml $$files/; done

# docker and podman take flags; a script around one of them takes TAG FILE CONTEXT and then flags.
# Optional: BASE, the base image from a mirror or by digest; SOURCE, where this code can be read; BUILD_ARGS, more flags for the engine.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git describe --always --dirty --abbrev=40 2>/dev/null)
label = $(if $(2),--label org.opencontainers.image.$(1)=$(2))
build = nice $(CONTAINERS) build $(if $(filter docker podman,$(notdir $(lastword $(CONTAINERS)))),--tag $(1) --file $(2) $(3),$(1) $(2) $(3)) \
	$(if $(BASE),--build-arg BASE=$(BASE))
image = $(call build,consilium-$(1):$(VERSION),docker/$(2).Dockerfile,.) \
	$(call label,version,$(VERSION)) $(call label,revision,$(REVISION)) $(call label,source,$(SOURCE)) $(3) $(BUILD_ARGS)

images images-gpu: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null)
images: ## Build coordinator, agent and trainer (CONTAINERS=docker, BASE, SOURCE)
	$(call image,coordinator,coordinator)
	$(call image,agent,agent)
	$(call image,trainer,trainer,$(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)))

images-gpu: ## Build the trainer for CUDA; several GB, never part of `make images`
	$(call image,trainer-gpu,trainer,--build-arg FLAVOUR=trainer-gpu --build-arg TORCH_INDEX=)

COMPOSE ?= $(CONTAINERS) compose
# An engine fires healthchecks by itself; a script around one without a scheduler runs them by `SCRIPT healthy NAME`.
HEALTHY ?= $(if $(filter docker podman,$(notdir $(lastword $(CONTAINERS)))),,$(CONTAINERS) healthy)
# Empty: stand-ins are built from Debian's packages, so that no registry is needed.
POSTGRES_IMAGE ?=
PROMETHEUS_IMAGE ?=
stand_in = $(call build,consilium-test-$(1),tests/deploy/$(1).Dockerfile,tests/deploy)

images-gpu-test: $(VENV)/.dev images-gpu ## Build the trainer for CUDA and try it, with or without a GPU
	CONTAINERS='$(CONTAINERS)' IMAGES=trainer-gpu $(BIN)/python -m pytest tests/deploy/test_images.py -k trainer-gpu

deploy-test: $(VENV)/charts/.done images ## Build the images; try compose files, images and charts for real (CONTAINERS, COMPOSE, HELM)
	$(if $(POSTGRES_IMAGE),,$(call stand_in,postgres))
	$(if $(PROMETHEUS_IMAGE),,$(call stand_in,prometheus))
	CONTAINERS='$(CONTAINERS)' COMPOSE='$(COMPOSE)' HEALTHY='$(HEALTHY)' HELM='$(HELM)' \
		POSTGRES_IMAGE='$(or $(POSTGRES_IMAGE),consilium-test-postgres)' PROMETHEUS_IMAGE='$(or $(PROMETHEUS_IMAGE),consilium-test-prometheus)' \
		KUBERNETES_VALIDATE=$(abspath $(VENV)/charts/bin/python) $(BIN)/python -m pytest -m deploy tests/deploy

lint: $(VENV)/.dev ## ruff, mypy --strict, import contracts, dead and complicated code, buf lint, fresh stubs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture wire coordinator silo_agent experiments --exclude wire/consilium --min-confidence 80
	@complex="$$($(BIN)/radon cc --min C --show-complexity wire coordinator silo_agent experiments docker --exclude 'wire/consilium/*')"; \
		test -z "$$complex" || { echo "Above complexity 10:"; echo "$$complex"; exit 1; }
	$(BIN)/buf lint protos
	$(BIN)/python protos/generate.py --check

protos: $(VENV)/.dev ## Generate wire/consilium from protos/
	$(BIN)/python protos/generate.py

bench: $(VENV)/.dev ## Tally, ballot sizes, round overhead, memory: ratios measured in one run
	$(BIN)/python -m experiments.bench

soak: $(VENV)/.demo ## Kill, cut off and slow down a federation for 200 rounds, five minutes (SILOS, ROUNDS, SEED)
	$(BIN)/python -m experiments.soak --silos $(SILOS) --rounds $(ROUNDS) --seed $(SEED)

# Not for `dev`: nothing else needs it, and it brings an HTTP library along.
$(VENV)/.mutants: $(VENV)/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	@touch $@

mutants: $(VENV)/.mutants ## Change one thing at a time and see whether a test fails; hours (AREAS, SHARE=1)
	nice -n 15 $(BIN)/python tests/mutants.py mutants-report.jsonl $(AREAS) --share $(SHARE)

experiments: $(VENV)/.dev ## Privacy against utility, attacks, and with DATA=DIR the papers' tables; hours
	$(BIN)/consilium experiment privacy-utility --dataset digits --alpha 0.5
	$(BIN)/consilium experiment privacy-utility --dataset breast-cancer
	$(if $(DATA),$(BIN)/consilium experiment privacy-utility --dataset adult --data $(DATA))
	$(BIN)/consilium experiment vulnerability --dataset digits --seeds 2
	$(if $(DATA),$(BIN)/consilium experiment papers --data $(DATA))
	$(if $(DATA),$(BIN)/consilium experiment results)

clean: ## Remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info demo-report soak-report experiment-report mutants-report.jsonl .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
