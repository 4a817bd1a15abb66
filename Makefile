# `make` lists what can be made. The tests' parts and what each stands on are in tests/run.

CARGO ?= cargo
CLUSTER_SCRIPT := tests/cluster/cluster

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo demo-down
demo: ## From nothing to a running VM on a local cluster (CLUSTER=current: on the cluster of KUBECONFIG)
	@tests/cluster/demo up
demo-down: ## Remove the demo, and the local cluster if the demo has started it
	@tests/cluster/demo down

.PHONY: test test-unit fuzz test-apiserver test-faults test-changes test-runner test-cluster test-e2e test-demo soak
test: install ## Every test, and what it needs; ends with `N passed, N failed`
	@tests/run
test-unit: ## Unit, golden and scenario tests, examples in the documentation, each half alone
	@tests/run unit
fuzz: ## Look for inputs that break the readers of QMP, configuration, agents and sizes (FUZZ_SECONDS, default 5, each)
	@FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} tests/run fuzz
test-apiserver: ## The operator on a real API server
	@tests/run cluster apiserver
test-faults: ## Every fault at every call of the operator; or several at random, for FAULTS_MINUTES (FAULTS_SEED)
	@tests/run faults
test-changes: ## Running VMs changed at random for CHANGES_MINUTES (4), or CHANGES times, are as if made so, and back (CHANGES_SEED)
	@tests/run changes
test-runner: ## The runner with a real QEMU
	@tests/run programs images guests runner
test-cluster: ## The local cluster and the guests, by themselves
	@tests/run cluster images guests selftests
test-e2e: ## Everything together: real kubelet, real QEMU
	@tests/run programs cluster images guests previous e2e
soak: ## An hour (SOAK_MINUTES) of everything that can happen, at random (SOAK_SEED); not part of `make test`
	@tests/run programs cluster images guests soak
test-demo: ## What `make demo` prints works as printed
	@tests/run programs cluster images guests demo

.PHONY: bench bench-scale bench-slope bench-startup bench-density lint golden
bench: ## Measure, and print a table for the README; needs `make install cluster images guests`, and jq
	@tests/bench/run
bench-scale: ## Measure the operator with thousands of VMs (SCALE_VMS, default 10000) on an API server of its own
	@tests/run programs
	$(CARGO) bench --locked --bench scale
bench-slope: ## Whether the operator's memory grows over a million (SLOPE_RECONCILES) reconciles of SCALE_VMS (500) VMs
	@tests/run programs
	SCALE_VMS=$${SCALE_VMS:-500} SLOPE_RECONCILES=$${SLOPE_RECONCILES:-1000000} $(CARGO) bench --locked --bench scale
bench-startup: ## Where the time of the programs' own start goes, STARTS (20) times; needs `make cluster images guests`
	@tests/run programs
	$(CARGO) bench --locked --bench startup
bench-density: ## Measure many VMs (DENSITY_VMS, default 100) beside as many bare pods; needs `make install cluster images guests`, and jq
	@tests/bench/density
lint: ## Format, clippy for the whole and for each half, shell syntax, dependencies' licences and sources
	@tests/run lint
golden: ## Write the golden files, crds/ and what is generated in docs/ anew; review what changed
	$(CARGO) run --bin vm-operator -- crds --dir crds
	$(CARGO) run --bin vm-operator -- docs --dir docs
	INSTA_UPDATE=always $(CARGO) test --test golden

.PHONY: install programs images guests cluster cluster-down
install: ## Install the Debian packages that all of this needs, where missing
	@$(CLUSTER_SCRIPT) install
	@tests/cluster/images install
	@tests/cluster/demo-selftest install
programs: ## Build the two programs, static
	@tests/run programs
images: ## Build the two images: .cache/images/*.tar
	@tests/run programs images
guests: ## Build the three test guests: .cache/guests/*.img
	@tests/run images guests
cluster: ## Start the local cluster
	@$(CLUSTER_SCRIPT) up
cluster-down: ## End the local cluster and remove its state
	@$(CLUSTER_SCRIPT) down
