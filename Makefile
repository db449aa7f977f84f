# Each target does its own set-up: a fresh machine needs Python 3.11 or newer and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One thread: two OpenMP threads on two busy cores are erratic.
export OMP_NUM_THREADS := 1
# Processes of the longer test targets; .ci/run runs two targets at once, with one each.
PROCESSES ?= 2

.PHONY: demo test test-browser test-gpu test-kernels test-plugins test-trainers test-sklearns test-vision \
	test-ray lint types bench soak results docs clean

# Modules are compiled when they are imported: compiling all takes longer.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check torch==2.13.0

# torch first and alone: with it in place, the rest of the requirements are satisfied by that build.
$(BIN)/.lab-ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL)
	$(INSTALL) --editable '.[lab]'
	touch $@

$(BIN)/.ready: $(BIN)/.lab-ready
	$(INSTALL) --editable '.[dev]'
	touch $@

$(BIN)/.docs-ready: $(BIN)/.ready
	$(INSTALL) --editable '.[docs]'
	touch $@

demo: $(BIN)/.lab-ready  ## the main job: long-tailed digits, plain, AoL, logit adjustment and both, five seeds, one table
	$(BIN)/aol train --weighting none,aol --margin none,counts-seen --seed 0-4 --out runs/demo --fresh

test: $(BIN)/.ready  ## all tests and doctests, on two cores
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal

lint: $(BIN)/.ready  ## rules, format, and which part may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=src $(BIN)/lint-imports

types: $(BIN)/.ready
	$(BIN)/mypy

bench: $(BIN)/.ready  ## speed and memory on this machine, with ratios; writes benchmarks/results/
	PYTHONPATH=src $(BIN)/python -m benchmarks.stacked
	$(BIN)/python benchmarks/sample_ages.py

soak: $(BIN)/.ready  ## kills, damages and misuses aol at random, for an hour or MINUTES=
	PYTHONPATH=src:. $(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),60)

results: $(BIN)/.ready  ## new records of results/ and results/margins/ into their files, and into the two pages of results
	$(BIN)/python results/pack.py results results/margins
	$(BIN)/aol study page --out results --write docs/results.md
	$(BIN)/aol study page --out results/margins --write docs/results-margins.md

docs: $(BIN)/.docs-ready  ## the documentation site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) $(VENV)-* site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

test-gpu:  ## on a machine with CUDA and its own PyTorch: what CI cannot see
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu
	PYTHONPATH=src $(PYTHON) -m pytest tests/lab/nets/test_diverging_run.py -k cuda

# Environments on top of $(VENV): what only one kind of test needs does not reach the others. Each needs $(BIN)/.ready.
# Triton is no dependency, and its interpreter runs the kernels without a GPU.
$(VENV)-kernels/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-kernels triton

test-kernels: $(VENV)-kernels/.ready  ## the kernels without a GPU: by Triton's interpreter, and thread by thread
	TRITON_INTERPRET=1 $(VENV)-kernels/bin/python -m pytest --numprocesses $(PROCESSES) tests/lab/nets/fused src/aol/lab/nets/fused

$(VENV)-ray/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-ray ray==2.60.0

test-ray: $(VENV)-ray/.ready  ## studies on a real Ray cluster of this machine, whose workers are killed
	$(VENV)-ray/bin/python -m pytest tests/lab/train/test_ray.py

$(VENV)-browser/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-browser 'playwright>=1.49'

test-browser: $(VENV)-browser/.ready $(BIN)/.docs-ready  ## the report page and the documentation, driven in Chromium
	chromium=$$(.ci/chromium) && AOL_CHROMIUM=$$chromium $(VENV)-browser/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadfile tests/browser

# Frameworks that go together share an environment. One that is missing fails its tests.
test-plugins: test-trainers test-sklearns test-vision  ## the plug-ins and recipes, each against its real framework

$(VENV)-trainers/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-trainers lightning==2.6.6 transformers==5.22.2 accelerate==1.15.0 datasets==5.2.0

test-trainers: $(VENV)-trainers/.ready
	AOL_HOST=lightning,transformers $(VENV)-trainers/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadfile tests/plugins/lightning tests/plugins/transformers src/aol/plugins/lightning.py src/aol/plugins/transformers.py tests/docs/test_blocks.py

$(VENV)-sklearns/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-sklearns skorch==1.4.0 river==0.26.1 lightgbm==4.7.0 xgboost==3.2.0 \
		pandas accelerate==1.15.0

test-sklearns: $(VENV)-sklearns/.ready  # and scikit-learn's own checks
	AOL_HOST=sklearn,skorch,river SCIPY_ARRAY_API=1 $(VENV)-sklearns/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadfile tests/plugins/river tests/plugins/trees tests/plugins/sklearn/test_sklearn_checks.py src/aol/plugins/river.py tests/docs/test_blocks.py

$(VENV)-vision/.ready: $(BIN)/.ready
	.ci/layer $(VENV) $(VENV)-vision torchvision==0.28.0 avalanche-lib==0.6.0 timm==1.0.30 \
		datasets==5.2.0 fastai==2.8.12

test-vision: $(VENV)-vision/.ready  # Avalanche, fastai, and data sets and networks of other libraries by name
	AOL_HOST=avalanche,fastai,sources $(VENV)-vision/bin/python -m pytest tests/lab/data/sources tests/docs/test_blocks.py

.PHONY: bench-plugins
bench-plugins: $(VENV)-sklearns/.ready  ## ages beside their rivals on streams and tables; about an hour
	$(VENV)-sklearns/bin/python benchmarks/river_streams.py
	$(VENV)-sklearns/bin/python benchmarks/tabular.py
