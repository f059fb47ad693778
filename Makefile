# oci-rs: `make help` lists the targets.
.PHONY: help build setup demo demo-stop test test-v2 test-filesystems check upgrade chaos random-images e2e \
	e2e-versions conformance oci-conformance exhaustion fuzz bench fmt clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

build: ## Build the release binary: target/x86_64-unknown-linux-musl/release/oci-rs
	@for program in cargo cc musl-gcc; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
		! command -v cc >/dev/null || echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null || \
			missing="$$missing libc6-dev"; [ -z "$$missing" ] || \
			{ echo "missing:$$missing (Rust: https://rustup.rs; Debian: gcc libc6-dev musl-tools)"; exit 1; }
	cargo build --release -p oci-rs

.PHONY: package package-check test-packages release
package: ## Build tarball, .deb and .rpm for x86-64 and aarch64 in dist/. ARGS=x86_64 picks one
	@scripts/package.sh $(ARGS)

package-check: ## Show that the packages are reproducible: build them again elsewhere, and compare. ARGS=x86_64 picks one
	@scripts/package-check.sh $(ARGS)

test-packages: ## Install the packages in a clean Debian; upgrade and remove them under a running task (root)
	@scripts/test-packages.sh

release: ## Build a release from its tag: packages, checksums and notes in dist/
	@scripts/release.sh

setup: ## Install what build, tests and demo need (root if packages are missing)
	scripts/setup.sh

demo: ## Run a web service on a real Nomad agent, show it, clean up (root; KEEP=1 leaves it running)
	@scripts/demo.sh

demo-stop: ## Stop a demo that was started with KEEP=1
	@scripts/demo.sh stop

test: ## Install what is missing, then run all checks and tests of CI (root)
	@scripts/setup.sh
	@scripts/check.sh

test-v2: ## Run the tests under cgroup v2, in a virtual machine. ARGS="wire limits" picks cases, KERNEL=6.18 the kernel
	@KERNEL=$(KERNEL) scripts/setup.sh
	cargo build --workspace --bin oci-rs
	@KERNEL=$(KERNEL) scripts/test-v2.sh $(ARGS)

.PHONY: test-aarch64
test-aarch64: ## Run units and containers on aarch64, in an emulated machine (root). ARGS="exec_" picks cases
	@scripts/test-aarch64.sh $(ARGS)

.PHONY: test-systemd
test-systemd: ## Run a node with systemd and the .deb in a virtual machine: doctor, restarts of Nomad's unit (root)
	cargo build -p oci-rs
	@scripts/test-systemd.sh

test-gpu: ## Run jobs that compute on the NVIDIA GPU of this machine (root)
	@scripts/setup.sh
	@scripts/test-gpu.sh

test-filesystems: ## Run the store's and containers' tests on ext4, xfs and btrfs (root). ARGS="xfs btrfs" picks some
	@scripts/test-filesystems.sh $(ARGS)

check: ## Check format, lints, licences and documentation; needs neither root nor Nomad
	@scripts/check.sh format lint licences docs

upgrade: ## Let this build take over tasks of an older commit's build (root). COMMIT=…; default: the commit before
	@scripts/upgrade.sh $(COMMIT)

chaos: ## Run 1,000 random task lives with random kills (root). CHAOS_LIVES=… another number, CHAOS_SEED=… repeats a run
	cargo build -p oci-rs
	CHAOS_LIVES=$(or $(CHAOS_LIVES),1000) cargo test -p oci-rs-tests --test chaos -- --nocapture random_lifecycles

.PHONY: volume-kills
volume-kills: ## Kill the host volume plugin at many moments; the next call must mend it (root). COUNT=100
	cargo build -p oci-rs
	OCI_RS_VOLUME_KILLS=$(or $(COUNT),100) cargo test -p oci-rs-tests --test wire -- is_mended_by_the_next_call

.PHONY: lazy-kills
lazy-kills: ## Kill servers of incomplete layers, then plugins and monitors, at random times beside readers (root). COUNT=1000
	OCI_RS_LAZY_KILLS=$(or $(COUNT),1000) cargo test -p oci-rs-lazy --test cases -- kills_at_any_time
	cargo build -p oci-rs
	OCI_RS_LAZY_START_KILLS=$(or $(COUNT),1000) cargo test -p oci-rs-tests --test wire -- \
		kills_of_plugins_and_monitors

exhaustion: ## Tasks that use up what the node has, beside another task (root). COMMANDS=3000 hang at the same time
	cargo build -p oci-rs
	OCI_RS_HANGING_COMMANDS=$(or $(COMMANDS),3000) cargo test -p oci-rs-tests --test wire -- --nocapture \
		--test-threads 1 exhaustion

random-images: ## Compare 200 random images with what umoci makes of them (root). COUNT=…, SEED=… repeats some
	cargo build -p oci-rs
	OCI_RS_RANDOM_IMAGES=$(or $(COUNT),200) OCI_RS_RANDOM_SEED=$(or $(SEED),1) \
		cargo test -p oci-rs-tests --test wire -- --nocapture random_images

e2e: ## Run jobs on a real Nomad agent (root). ONLY=word picks tests by name
	@scripts/check.sh e2e

e2e-versions: ## The same with every supported version of Nomad (root). VERSIONS="1.8.3 1.9.4" picks some
	@scripts/e2e-versions.sh $(VERSIONS)

.PHONY: parity parity-docs
parity: ## Run each job with Nomad's docker driver and with oci-rs, and compare (root). ONLY=word picks cases by name
	@PARITY=all scripts/check.sh parity

parity-docs: ## Write docs/docker-parity.md from the list of differences
	OCI_RS_WRITE_DOCS=1 cargo test --quiet --workspace --test parity

.PHONY: escapes escapes-record
escapes: ## Try to leave containers of docker and of oci-rs, and compare with the recorded results (root)
	@ESCAPES=all scripts/check.sh escapes

escapes-record: ## The same, and write the results and docs/escapes.md
	@ESCAPES=record scripts/check.sh escapes

conformance: ## Run Nomad's own driver conformance tests (root)
	@scripts/check.sh conformance

oci-conformance: ## Run the validation programs of the OCI specification with runc, crun and ours (root). ARGS=quick
	cargo build --workspace
	@scripts/oci-conformance.sh $(ARGS)

fuzz: ## Fuzz every parser of untrusted input, SECONDS=60 each, two at a time (root). ONLY="layer pax" picks targets
	@SECONDS_EACH=$(or $(SECONDS),60) scripts/fuzz.sh $(ONLY)

bench: build ## Compare with other container programs (root). ARGS="start --rounds 9" picks cases
	OCI_RS_BIN=$(CURDIR)/target/x86_64-unknown-linux-musl/release/oci-rs \
		cargo run -q --profile measure -p oci-rs-bench -- $(ARGS)

.PHONY: pictures
pictures: ## Draw the pictures of the documentation from their texts (Debian: graphviz)
	@scripts/pictures.sh

fmt: ## Format the code
	cargo fmt
	cd e2e/conformance && gofmt -w .

clean: ## Remove build results (the tools' cache in ~/.cache/oci-rs stays)
	cargo clean
