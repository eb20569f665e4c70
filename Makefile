# Needs Rust 1.95 or newer with rustfmt and clippy, and a C compiler. `make test` is what CI runs.

# Incremental artefacts cost disk and time in a build that starts from nothing.
export CARGO_INCREMENTAL = 0
CARGO ?= cargo
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)

.NOTPARALLEL:
.PHONY: help build test check-format lint doc examples browser wheel python fmt bench bands fuzz soak deny semver external-types demo-network clean

help: ## Show this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the program: target/release/soteria
	$(CARGO) build --release --locked

test: check-format lint doc examples browser ## Everything that must pass: format, lints, documentation, examples, tests
	$(CARGO) test --workspace --locked --no-fail-fast
	$(CARGO) test -p soteriafl --locked --features mutations --test mutations
	SOTERIA_PROGRAM=$(abspath $(TARGET_DIR))/debug/soteria $(MAKE) python

check-format: ## Check the format
	$(CARGO) fmt --all --check

lint: ## Clippy on all targets, warnings are errors
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: ## Build the API documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The examples are built with the tests, so that nothing is compiled twice.
examples: ## Build the tests and run the examples that need no input
	$(CARGO) test --workspace --locked --no-run
	$(TARGET_DIR)/debug/examples/train > /dev/null
	$(TARGET_DIR)/debug/examples/accountant > /dev/null
	$(TARGET_DIR)/debug/examples/own_model > /dev/null

# The dashboard's page is tested in a real browser. Root on Debian gets one; everybody else is told.
browser: ## Look for chromium, and install it where that can be done
	@command -v chromium > /dev/null || [ -n "$$SOTERIA_BROWSER" ] || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium > /dev/null; \
	} || echo "*** no chromium, and none could be installed: the dashboard will NOT be tested in a browser ***" >&2

wheel: ## Build the Python package: target/wheels/soteriafl-*.whl (needs Python 3.11 or newer)
	./crates/python/check.sh wheel

# Where Python or the package index cannot be had, it says so and goes on.
python: ## Build the Python package and test it: ruff, mypy, stubtest, pytest (in an environment under target/python)
	./crates/python/check.sh test

fmt: ## Format the code
	$(CARGO) fmt --all

bench: ## Run the benchmarks
	$(CARGO) bench --workspace --locked

soak: ## Kill networked processes for minutes (SOTERIA_SOAK_KILLS, default 300 per estimator)
	$(CARGO) test --release --locked -p soteriafl-cli --test network -- --ignored --nocapture soak

# The switches are a nightly compiler's; RUSTC_BOOTSTRAP lets a stable one take them. SQLite is linked twice into a target.
fuzz: ## Throw bytes at decoders, readers and parties (SOTERIA_FUZZ_SECONDS each, default 60; cargo install cargo-fuzz)
	cd fuzz && for target in $$(RUSTC_BOOTSTRAP=1 $(CARGO) fuzz list); do \
		RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=detect_odr_violation=0 $(CARGO) fuzz run $$target -- \
			-max_total_time=$${SOTERIA_FUZZ_SECONDS:-60} || exit 1; \
	done

deny: ## Licences and advisories of all dependencies (cargo install cargo-deny)
	$(CARGO) deny --all-features check

semver: ## What changed in the public interface since BASE (cargo install cargo-semver-checks)
	$(CARGO) semver-checks --baseline-rev $(or $(BASE),main) -p soteriafl-accountant -p soteriafl-core -p soteriafl-data -p soteriafl

# Which types of other crates the public interface shows; needs the switches of a nightly compiler.
external-types: ## Types of other crates in the public interface (cargo install cargo-check-external-types)
	for crate in accountant core data soteriafl; do \
		RUSTC_BOOTSTRAP=1 $(CARGO) check-external-types --manifest-path crates/$$crate/Cargo.toml || exit 1; \
	done

demo-network: ## A coordinator and three clients over TLS; one is killed in the middle; the result is the same
	$(CARGO) build --release --locked
	TARGET_DIR=$(TARGET_DIR) ./examples/deployment/demo.sh

bands: build ## Runs as published against the authors' values, in full (MNIST in SOTERIA_DATA or the cache)
	$(TARGET_DIR)/release/soteria reproduce a9a --epsilon 1,5 --modes published --check --out $(TARGET_DIR)/bands/a9a
	$(TARGET_DIR)/release/soteria reproduce mnist --epsilon 1,2 --seeds 3 --modes published --check --out $(TARGET_DIR)/bands/mnist

clean: ## Remove what was built
	$(CARGO) clean
