# oci-rs: `make help` says what there is.
.PHONY: help build setup demo demo-stop test test-v2 check upgrade chaos e2e conformance fuzz bench fmt clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

build: ## The driver as it ships: target/x86_64-unknown-linux-musl/release/oci-rs
	cargo build --release -p oci-rs

setup: ## Install what build, tests and demo need (root where packages are missing)
	scripts/setup.sh

demo: ## A real Nomad agent runs a web service with the driver, shows it, cleans up (root; KEEP=1 leaves it running)
	@scripts/demo.sh

demo-stop: ## End a demo that was started with KEEP=1
	@scripts/demo.sh stop

test: ## Everything that CI checks (root)
	@scripts/check.sh

test-v2: ## The tests of containers under control groups v2, in a virtual machine. ARGS="wire limits" picks a suite and cases
	cargo build -p oci-rs
	@scripts/test-v2.sh $(ARGS)

check: ## Format, lints, licences, documentation: no root, no Nomad
	@scripts/check.sh format lint licences docs

upgrade: ## Tasks of an older commit's build taken over by this one's (root). COMMIT=… names it, the one before this otherwise
	@scripts/upgrade.sh $(COMMIT)

chaos: ## Random task lifecycles with random kills only (root). CHAOS_LIVES=10000 runs longer, CHAOS_SEED=… repeats a run
	cargo build -p oci-rs
	cargo test -p oci-rs-tests --test chaos -- --nocapture random_lifecycles

e2e: ## Jobs on a real Nomad agent only (root). ONLY=word picks tests by name
	@scripts/check.sh e2e

conformance: ## Nomad's own driver conformance tests only (root)
	@scripts/check.sh conformance

fuzz: ## Strangers' bytes at every parser, SECONDS=60 each, two at a time (root). ONLY="layer pax" picks
	@SECONDS_EACH=$(or $(SECONDS),60) scripts/fuzz.sh $(ONLY)

bench: build ## Peers and us side by side, medians and ratios (root). ARGS="start --rounds 9" picks and shortens
	OCI_RS_BIN=$(CURDIR)/target/x86_64-unknown-linux-musl/release/oci-rs cargo run -q --profile measure -p oci-rs-bench -- $(ARGS)

fmt: ## Format the code
	cargo fmt
	cd e2e/conformance && gofmt -w .

clean: ## Remove what was built (the tools' cache in ~/.cache/oci-rs stays)
	cargo clean
