# `make help` lists what can be done. Everything runs in .venv, which `install` makes and the others depend on.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
RUNTIMES := .runtimes/.installed
CLIENTS := .clients/.installed
OLDER := 1.20.1 1.24.4
SERVING := .serving/.installed
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install runtimes clients serving demo test every mutants sample fake-gpu examples quick size emitted wheel matrix check format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## make .venv with archdsl (editable) and all that developing it needs

# Requirements and pins go into one pip command, so that no range is ever resolved without its pin.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "archdsl needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

runtimes: install $(RUNTIMES) ## make .runtimes, where the tests find onnxruntime-genai and optimum

# In a folder of their own and without what they require: that would replace onnxruntime-gpu and transformers in .venv.
$(RUNTIMES): constraints-runtimes.txt
	rm -rf .runtimes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .runtimes -r constraints-runtimes.txt
	@touch $@

clients: install runtimes $(CLIENTS) ## make .clients, programs of others for benchmarks/clients.py (needs npm)

# As above; of what comes from npm nothing is run while it is installed: onnxruntime-node would fetch CUDA.
$(CLIENTS): constraints-clients.txt benchmarks/client_workers/package.json
	rm -rf .clients
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .clients/python -r constraints-clients.txt
	@set -e; for v in $(OLDER); do $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .clients/onnxruntime-$$v onnxruntime==$$v; done
	mkdir -p .clients/node && cp benchmarks/client_workers/package.json .clients/node
	npm install --prefix .clients/node --ignore-scripts --no-audit --no-fund --silent
	@touch $@

serving: install $(SERVING) ## make .serving, where vLLM is (3.5 GB), and compare its tokens with ours
	@$(BIN)/python benchmarks/serving.py

# What reads images and sounds comes for another torch where torch is one for CPUs, and no decoder needs it.
$(SERVING): constraints-serving.txt
	rm -rf .serving
	$(PYTHON) -m venv .serving
	.serving/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-serving.txt
	.serving/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

demo: install ## the tour: check, estimate, compile and run a spec, then train what was compiled
	@$(BIN)/python examples/demo.py

test: install runtimes ## run the tests in JOBS processes (2)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

every: install runtimes ## run all tests, also those that tests/left_out.toml names, over the whole zoo: six times as long
	@$(BIN)/python -m pytest --every -n $(JOBS) --dist loadfile

# What to draw from, how many, and the seed: make mutants OF=archdsl/dependence COUNT=100 SEED=3
OF ?= archdsl
COUNT ?= 40
SEED ?= 0
mutants: install runtimes ## change COUNT lines of OF, drawn by SEED, each by itself, and say which changes no test notices
	@$(BIN)/python tests/mutants.py $(OF) --count $(COUNT) --seed $(SEED) --jobs $(JOBS)

sample: install ## choose by the map of `mutants` which cases `test` leaves to `every`
	@$(BIN)/python tests/sample.py

fake-gpu: install ## run every model of the zoo on a fake CUDA device, and compile its families: half an hour
	@$(BIN)/python -m pytest --every -n $(JOBS) tests/torch_emit/test_fake_cuda.py tests/torch_emit/test_compile.py tests/torch_emit/test_cuda_graphs.py

examples: install ## run the scripts of examples/, with all libraries that they show
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples]'
	@$(BIN)/python -m pytest tests/test_examples.py

quick: install ## run the tests that need neither PyTorch nor ONNX: a minute
	@$(BIN)/python -m pytest --quick -n $(JOBS)

size: install ## count lines by folder, and those of emitted files, which have budgets
	@$(BIN)/python tests/size.py

emitted: install ## print the lines that `--with generate` adds to each emitted file, and which may be no more: a minute
	@$(BIN)/python tests/emitted_lines.py

wheel: install ## install the wheel with each extra into an empty environment, and use it there
	@$(BIN)/python tests/wheel.py

matrix: ## run the tests with each Python that is here, and with the lowest versions of all packages
	@tests/matrix.sh

check: install ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: install ## rewrite the code as `check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install clients ## run every script of benchmarks/ that needs no GPU
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@set -e; for script in $(sort $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/*.py))); do echo "== $$script"; $(BIN)/python "$$script"; done

clean: ## remove caches and built distributions (rm -rf .venv .runtimes .clients .serving for the rest)
	rm -rf build dist .matrix .mutants .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . \( -path ./.venv -o -path ./.runtimes -o -path ./.clients -o -path ./.serving \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
