# `make` lists what can be made. The tests' parts and what each stands on are in tests/run.

CARGO ?= cargo
CLUSTER_SCRIPT := tests/cluster/cluster

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo demo-down
demo: ## From nothing to a running VM on a local cluster (CLUSTER=current REGISTRY=…: on the cluster of KUBECONFIG; DEMO=peerpod: a PeerPod; DEMO=sip: a SIPCluster)
	@tests/cluster/demo up
demo-down: ## Remove the demo, and the local cluster if the demo has started it
	@tests/cluster/demo down

.PHONY: check test test-exhaustive test-unit fuzz test-apiserver test-faults test-changes test-runner test-e2e soak test-demo
check: ## Format, lints, unit, golden and scenario tests, the models, a twelfth of the simulated faults; needs Rust and a C compiler only
	@tests/run check
test: install ## Every test of CI, and what it needs; ends with `N passed, N failed`
	@tests/run
test-exhaustive: install ## Everything without sampling, from an empty cache; results are kept for each state of the sources
	@tests/run exhaustive $(PARTS)
test-unit: ## Unit, golden and scenario tests, the model
	@tests/run unit
fuzz: ## Search for inputs that break the parsers of QMP, configuration, agents and sizes (FUZZ_SECONDS, default 60, each)
	@tests/run fuzz
test-apiserver: ## The operator on a real API server
	@tests/run apiserver
test-faults: ## Faults on a real API server: a rotating share of the cases (FAULTS_ALL=1: all of them)
	@tests/run faults
test-changes: ## VMs that are changed at random end like VMs that were created so (CHANGES, CHANGES_FROM, CHANGES_SEED)
	@tests/run changes
test-runner: ## The runner with a real QEMU
	@tests/run programs images guests runner
test-e2e: ## Everything together: real kubelet, real QEMU
	@tests/run programs cluster images guests previous e2e
soak: ## Everything at random for SOAK_MINUTES (15) (SOAK_SEED); not part of `make test`
	@tests/run soak
test-demo: ## The commands that `make demo` prints
	@tests/run programs cluster images guests demo

.PHONY: cache-list cache-empty
cache-list: ## Sizes of the cache outside the checkout (VMOP_CACHE)
	@tests/cache list
cache-empty: ## Remove that cache
	@tests/cache empty

.PHONY: bench bench-scale bench-slope bench-pools bench-sip bench-web bench-startup bench-density lint golden
bench: ## Measure, and print a table for docs/figures.md; needs `make cluster guests`, and jq
	@tests/bench/run
bench-scale: ## Measure the operator with thousands of VMs (SCALE_VMS, default 10000) on an API server of its own
	@tests/release build
	$(CARGO) bench --locked --bench scale
bench-slope: ## Whether the operator's memory grows over a million (SLOPE_RECONCILES) reconciles of SCALE_VMS (500) VMs
	@tests/release build
	SCALE_VMS=$${SCALE_VMS:-500} SLOPE_RECONCILES=$${SLOPE_RECONCILES:-1000000} $(CARGO) bench --locked --bench scale
bench-pools: ## Measure assignments with SCALE_VMS (1000) VMs in SCALE_POOLS (50) pools
	@tests/release build
	SCALE_VMS=$${SCALE_VMS:-1000} SCALE_POOLS=$${SCALE_POOLS:-50} $(CARGO) bench --locked --bench scale
bench-sip: ## Measure the controller of SIPClusters with SCALE_SIP (100) clusters of ten hosts
	@tests/release build
	SCALE_SIP=$${SCALE_SIP:-100} $(CARGO) bench --locked --bench scale
bench-web: ## Measure the web console with SCALE_WEB (500) live lists, 100 changes/s of SCALE_VMS (5000) VMs; WEB_ALL (10): lists with all VMs
	@tests/release build
	SCALE_VMS=$${SCALE_VMS:-5000} SCALE_WEB=$${SCALE_WEB:-500} $(CARGO) bench --locked --bench scale
bench-startup: ## Where the time of the programs' own start goes, STARTS (20) times; needs `make cluster guests`
	@tests/release build
	@VMOP_PROFILE=release tests/cluster/images
	$(CARGO) test --locked --test runner -- bench::startup --nocapture
bench-density: ## Measure many VMs (DENSITY_VMS, default 100) beside as many bare pods; needs `make cluster guests`, and jq
	@tests/bench/density
lint: ## Format, clippy for the whole and for each half, shell syntax, the workflow, dependencies' licences and sources
	@tests/run lint halves dependencies
golden: ## Write the golden files, crds/ and the generated pages of docs/ again; review the difference
	INSTA_UPDATE=always $(CARGO) test --test check golden::

.PHONY: web
web: ## Build the pages of the web console, which are committed, from src/web/ui; needs Node.js
	@tests/web/pages install
	@tests/web/pages build

.PHONY: docs docs-demo
docs-demo: ## Record `make demo` as docs/images/demo.svg (CAST=<FILE>: render that recording instead)
	@tests/docs-demo
docs: ## Build the static site of docs/ with mdBook: .cache/book
	@tests/docs

.PHONY: install release release-push programs images guests cluster cluster-down
install: ## Install the Debian packages that all of this needs, where missing
	@$(CLUSTER_SCRIPT) install
	@tests/cluster/images install
	@tests/cluster/demo-selftest install
	@tests/monitoring/selftest install
	@tests/tools install
	@tests/web/pages install
	@release/registry install
	@tests/libvirt install
release: ## Write a release to dist/: images, manifests, charts, licences, sums (REGISTRY, NAMESPACE, SIGNING_KEY)
	@tests/cluster/images install
	@release/make
release-push: ## Push the images of dist/ to the registry for which they were made (PUSH_TLS_VERIFY=false: without TLS)
	@release/make push
programs: ## Build the two programs, static, as the tests use them
	@tests/run programs
images: ## Build the three images with these programs: .cache/images/*.tar
	@tests/run programs images
guests: ## Build the three test guests: .cache/guests/*.img
	@tests/run images guests
cluster: ## Start the local cluster
	@$(CLUSTER_SCRIPT) up
cluster-down: ## End the local cluster and remove its state
	@$(CLUSTER_SCRIPT) down
