# `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

target := $(or $(CARGO_TARGET_DIR),target)
# nextest runs each test in a process of its own and stops one that hangs; without it cargo's own runner does.
runner := $(shell cargo nextest --version >/dev/null 2>&1 && echo 'nextest run' || echo test)

.PHONY: help run test lint rust-tests client-tests crash bench bench-engine need-rust need-npm

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

run: need-rust ## build and serve on the embedded engine at 127.0.0.1:5984
	cargo build --release --package flatbed
	exec $(target)/release/flatbed serve

test: lint client-tests rust-tests ## all checks and tests

lint: need-rust
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# The same packages and features as the tests', so that nothing is built twice; the binary is among them.
client-tests: need-rust need-npm tests/node_modules/.package-lock.json
	cargo test --workspace --no-run
	cd tests && CARGO_TARGET_DIR='$(abspath $(target))' npm test

rust-tests: need-rust
	cargo $(runner) --workspace

crash: need-rust ## kill the engine 300 times and the server 50 times while they write, and have the disk fail
	FLATBED_CRASH_KILLS=300 cargo test --package fdb-embedded --test crash --test failing_disk -- --nocapture
	FLATBED_CRASH_KILLS=50 cargo test --package flatbed --test crash -- --nocapture

bench: need-rust bench-engine ## measure beside pouchdb-server and the raw engine; results in target/bench
	cargo build --release --package flatbed --package flatbed-bench
	mkdir -p $(target)/bench
	if command -v npm >/dev/null; then \
	  npm install --prefix $(target)/bench --no-save --no-audit --no-fund --loglevel=error pouchdb-server@4.2.0; \
	else echo 'npm is missing: measuring without pouchdb-server' >&2; fi
	pouchdb='$(target)/bench/node_modules/pouchdb-server/bin/pouchdb-server'; \
	$(target)/release/flatbed-bench suite --flatbed $(target)/release/flatbed --directory $(target)/bench \
	  $$([ -e "$$pouchdb" ] && echo --pouchdb "$$(realpath "$$pouchdb")")

bench-engine: need-rust ## measure the engine beside plain LMDB; results in target/bench/engine.md
	cargo build --release --package foundationdb-sys --example engine_bench
	mkdir -p $(target)/bench
	$(target)/release/examples/engine_bench --output $(target)/bench/engine.md
	if command -v taskset >/dev/null; then \
	  taskset -c 0 $(target)/release/examples/engine_bench --output $(target)/bench/engine.md --append points ranges scan commits; \
	else echo 'taskset is missing: not measured on one core' >&2; fi

tests/node_modules/.package-lock.json: tests/package-lock.json
	cd tests && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json

need-rust:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.88 or later from https://rustup.rs'; exit 1; }
	@command -v cc >/dev/null || { echo 'cc is missing: install a C compiler (Debian: apt install build-essential)'; exit 1; }

need-npm:
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js 20 or later (Debian: apt install nodejs npm)'; exit 1; }
