# `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

target := $(or $(CARGO_TARGET_DIR),target)
# nextest runs each test in a process of its own and stops one that hangs; without it cargo's own runner does. Either
# goes on behind a test that fails, so that a run tells of all of them. Tests wait half of their time: nextest runs two
# for each processor.
runner := $(shell cargo nextest --version >/dev/null 2>&1 \
  && echo "nextest run --test-threads $${NEXTEST_TEST_THREADS:-$$((2 * $$(getconf _NPROCESSORS_ONLN)))}" || echo test) --no-fail-fast
# The selection of packages and features that the tests, the lints and the documentation are built of. Another one turns
# on other features of dependencies, and cargo builds all that depends on them again.
tested := --workspace --features flatbed/test-build

bindings := $(target)/bindings
run-bindings := $(bindings)/venv/bin/python tests/bindings/run.py
as-root := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
host = $(shell rustc -vV | sed -n 's/^host: //p')

# The parts of `make test`, in their order; `.ci/run` times each.
parts := lint test-build client-tests rust-tests doc-tests bindings-tests

.PHONY: help fuzz run test parts packages packages-test torture test-worker $(parts) test-oracle memcheck sanitize crash mutants attack proto bench bench-worker \
  bench-engine bench-feeds bindings-library pouchdb-suites need-rust need-npm need-python

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

run: need-rust ## build and serve on the embedded engine at 127.0.0.1:5984
	cargo build --release --package flatbed
	exec $(target)/release/flatbed serve

test: $(parts) ## all checks and tests

parts:
	@echo $(parts)

# dpkg-deb and rpmbuild are in Debian; rpmbuild is installed where it is missing.
packages: need-rust need-npm ## .deb, .rpm and tarball in target/packages, for packages/Containerfile too
	command -v rpmbuild >/dev/null || $(as-root) apt-get install --yes --no-install-recommends rpm
	cargo build --release --package flatbed
	rm -rf $(target)/packages
	node packages/build.mjs --program $(target)/release/flatbed --out $(target)/packages

# It needs a mirror of Debian. `make test` does the same, as root, in a root of the machine's own programs, without systemd.
packages-test: packages ## install, serve, upgrade, remove and purge the .deb in a clean Debian (root, debootstrap, network)
	command -v debootstrap >/dev/null || $(as-root) apt-get install --yes --no-install-recommends debootstrap
	$(as-root) packages/test $(target)/packages/flatbed_*.deb

# The second run of clippy checks the program without its cargo features. Its dependencies then have other features, so all crates are checked
# again. Its tests are those of the first run.
lint: need-rust
	cargo fmt --all --check
	cargo clippy $(tested) --all-targets -- -D warnings
	cargo clippy --package flatbed --no-default-features --bins -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc $(tested) --no-deps --document-private-items
	cargo test --quiet --package flatbed-tidy
	if cargo deny --version >/dev/null 2>&1; then cargo deny --offline --workspace check licenses bans sources; fi

test-build: need-rust
	cargo test $(tested) --no-run

# The binary is among what the tests are built of.
client-tests: need-npm test-build tests/node_modules/.package-lock.json
	cd tests && CARGO_TARGET_DIR='$(abspath $(target))' npm test

rust-tests: need-rust
	cargo $(runner) $(tested)

# nextest runs no tests of documentation. Crates without any say `doctest = false`.
doc-tests: need-rust
	cargo test $(tested) --doc

# `CASES` also replaces the number of cases that a property sets itself. What is found goes into tests, as an example.
fuzz: need-rust ## parsers of what comes from outside, and whole requests, by property; CASES=20000 inputs each, SEED=7
	export PROPTEST_CASES=$(or $(CASES),20000) PROPTEST_RNG_SEED=$(or $(SEED),$$RANDOM); \
	echo "again: make fuzz CASES=$$PROPTEST_CASES SEED=$$PROPTEST_RNG_SEED"; \
	cargo test --package flatbed-flatten --package flatbed-admission --package flatbed-network --package flatbed-auth \
	  --package flatbed-revtree --package flatbed-mango --package flatbed-http --package flatbed-outward \
	  --package flatbed-worker --lib --tests; \
	cargo test --package flatbed-couch --lib; \
	cargo test --package flatbed-couch --test it any_requests::

# The tests that are long by choice. `make test` runs each for seconds, with a fixed seed.
tortures := binary(=tortures) | binary(=crash) | test(/^(crash|(feeds|import|worker)_torture|torture|replicas|concurrent|lease|many_processes|heat)::/)

# Last comes the whole suite on an engine that cuts three pages of ten short.
torture: need-rust ## what a release has to pass: tortures, kills and faults at length; SEED=7 SECONDS_OF_TORTURE=600 (an hour and more)
	@cargo nextest --version >/dev/null 2>&1 || { echo 'cargo-nextest is missing: cargo install cargo-nextest --locked'; exit 1; }
	seed=$(or $(SEED),$$RANDOM); seconds=$(or $(SECONDS_OF_TORTURE),120); \
	echo "again: make torture SEED=$$seed SECONDS_OF_TORTURE=$$seconds"; \
	export PROPTEST_RNG_SEED=$$seed; \
	FLATBED_TEST_SECONDS=$$seconds FLATBED_TEST_SEED=$$seed FLATBED_TEST_FAULTS=0.05,$$seed,0.3 FLATBED_CRASH_SEED=$$seed \
	  FLATBED_CRASH_KILLS=300 FLATBED_TEST_PROCESSES=100 FLATBED_TEST_MANY_DATABASES=10000 FLATBED_TEST_WRITES=300 \
	  FLATBED_TEST_DATABASES=4000 FLATBED_IMPORT_DOCUMENTS=100000 FLATBED_IMPORT_KILLS=10 \
	  cargo nextest run --no-fail-fast $(tested) -E '$(tortures)'; \
	FLATBED_TEST_SEEDS=5000 cargo nextest run $(tested) -E 'test(never_two_holders) | test(no_two_processes_believe)'; \
	FLATBED_FDB_BUGGIFY=0,$$seed,0.3 FLATBED_TEST_FAULTS=0.05,$$seed,0.3 FLATBED_TEST_SEED=$$seed FLATBED_CRASH_SEED=$$seed \
	  FLATBED_TEST_ROWS=50000 cargo nextest run --no-fail-fast $(tested)

# What `make test` does without, as most machines lack it.
test-worker: need-rust $(target)/worker/installed ## the worker against real servers, which it installs: PostgreSQL, MariaDB and an S3 server; DOCUMENTS=100000 and SECONDS_OF_TORTURE=600 make its torture long
	missing=; for package in postgresql mariadb-server; do \
	  dpkg -s "$$package" >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	if [ -n "$$missing" ]; then $$([ "$$(id -u)" = 0 ] || echo sudo) apt-get install --yes --no-install-recommends $$missing; fi
	FLATBED_REQUIRE_SERVERS=1 FLATBED_MOTO_SERVER='$(abspath $(target))/worker/bin/moto_server' \
	  cargo $(runner) --package flatbed-worker
	FLATBED_REQUIRE_SERVERS=1 FLATBED_MOTO_SERVER='$(abspath $(target))/worker/bin/moto_server' \
	FLATBED_TEST_SECONDS=$(or $(SECONDS_OF_TORTURE),60) FLATBED_TEST_DOCUMENTS=$(or $(DOCUMENTS),2000) \
	  cargo $(runner) --package flatbed --test it worker_torture

$(target)/worker/installed: tests/worker/requirements.txt | need-python
	python3 -m venv $(target)/worker
	$(target)/worker/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

bindings-tests: bindings-library tests/bindings/node/node_modules/.package-lock.json ## libfdb_c.so with the official Python and Node bindings, and from C
	$(run-bindings) --library $(bindings)/lib c python node oracle

# The suites are not in PouchDB's packages: `git clone https://github.com/pouchdb/pouchdb` has them.
pouchdb-suites: need-rust need-npm tests/pouchdb-suites/node_modules/.package-lock.json ## PouchDB's own suites against Flatbed; POUCHDB=DIRECTORY is its source
	cargo build --package flatbed
	CARGO_TARGET_DIR='$(abspath $(target))' node tests/pouchdb-suites/run.mjs '$(POUCHDB)'

proto: need-rust ## write crates/store/src/proto.rs from flatbed.proto
	cargo run --quiet --manifest-path crates/store/proto/generate/Cargo.toml --target-dir $(target)/proto

test-oracle: bindings-library ## replay all that a real cluster answered on libfdb_c.so
	$(run-bindings) --library $(bindings)/lib oracle-all

memcheck: bindings-library ## the C API's tests under valgrind
	cargo test --package fdb-capi --lib --tests --config 'target."cfg(all())".runner = "$(CURDIR)/tests/bindings/c/valgrind"'
	$(run-bindings) --library $(bindings)/lib memcheck

# The standard library is not instrumented by the toolchain, which ThreadSanitizer needs: it is built where its source is.
sanitize: need-rust $(bindings)/venv/installed ## the tests of the C API and the engine under AddressSanitizer and ThreadSanitizer
	export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address; \
	  cargo test --target $(host) --target-dir $(target)/address --package fdb-capi --lib --tests; \
	  cargo test --target $(host) --target-dir $(target)/address --package fdb-embedded --lib; \
	  cargo test --target $(host) --target-dir $(target)/address --package fdb-embedded --test it -- behaviour:: model::; \
	  cargo build --target $(host) --target-dir $(target)/address --package fdb-c
	$(run-bindings) --library $(target)/address/$(host)/debug --sanitizer address c
	if [ ! -d "$$(rustc --print sysroot)/lib/rustlib/src" ]; then \
	  echo 'ThreadSanitizer is left out: rustup component add rust-src'; exit 0; fi; \
	export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=thread CFLAGS=-fsanitize=thread; \
	  export TSAN_OPTIONS='suppressions=$(CURDIR)/tests/bindings/c/lmdb.tsan'; \
	  cargo test -Zbuild-std --target $(host) --target-dir $(target)/thread --package fdb-capi --lib --tests; \
	  cargo test -Zbuild-std --target $(host) --target-dir $(target)/thread --package fdb-embedded --lib; \
	  cargo test -Zbuild-std --target $(host) --target-dir $(target)/thread --package fdb-embedded --test it -- behaviour:: model::; \
	  cargo build -Zbuild-std --target $(host) --target-dir $(target)/thread --package fdb-c; \
	  $(run-bindings) --library $(target)/thread/$(host)/debug --sanitizer thread c

bindings-library: need-python test-build $(bindings)/venv/installed
	mkdir -p $(bindings)/lib
	ln -sf '$(abspath $(target))/debug/deps/libfdb_c.so' $(bindings)/lib/libfdb_c.so

$(bindings)/venv/installed: tests/bindings/requirements.txt | need-python
	python3 -m venv $(bindings)/venv
	$(bindings)/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

tests/bindings/node/node_modules/.package-lock.json: tests/bindings/node/package-lock.json | need-npm
	cd tests/bindings/node && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json

crash: need-rust ## kill the engine 300 times and the server 50 times while they write, and have the disk fail
	FLATBED_CRASH_KILLS=300 cargo test --package fdb-embedded --test crash --test failing_disk -- --nocapture
	FLATBED_CRASH_KILLS=50 cargo test --package flatbed --test it crash:: -- --nocapture

# The pure crates, of whose mutants at least so many of a hundred must be caught by their own tests.
mutants-crates := auth admission network revtree mango flatten metrics collate rowtree
mutants-caught := 95
cargo-mutants := $(or $(shell command -v cargo-mutants),$(target)/tools/bin/cargo-mutants)

# make mutants CRATE=revtree takes one crate. cargo-mutants ends with 2 or 3 where mutants were missed or took too long.
mutants: need-rust $(cargo-mutants) ## mutate the pure crates; 95 % must be caught by their own tests (an hour)
	few=; for crate in $(or $(CRATE),$(mutants-crates)); do \
	  out="$(target)/mutants/$$crate"; mkdir -p "$$out"; \
	  nice -n 19 $(cargo-mutants) mutants --package "flatbed-$$crate" --jobs 1 --output "$$out" || [[ $$? == [23] ]]; \
	  missed=$$(wc -l < "$$out/mutants.out/missed.txt"); \
	  caught=$$(cat "$$out"/mutants.out/{caught,timeout}.txt | wc -l); all=$$((caught + missed)); \
	  echo "$$crate: $$caught of $$all mutants caught"; \
	  [ $$((caught * 100)) -ge $$((all * $(mutants-caught))) ] || few="$$few $$crate"; \
	done; \
	[ -z "$$few" ] || { echo "fewer than $(mutants-caught) % caught:$$few; see $(target)/mutants"; exit 1; }

$(target)/tools/bin/cargo-mutants:
	cargo install cargo-mutants --version 27.1.0 --locked --root $(target)/tools || \
	  { echo 'cargo-mutants is missing, and could not be installed: cargo install cargo-mutants --locked'; exit 1; }

attack: need-rust ## attack a server of its own with some 40,000 hostile inputs (fifty minutes, 2 GB of memory)
	cargo build --release --package flatbed
	nice python3 tests/attack/run.py --flatbed $(target)/release/flatbed $(if $(GROUP),--group $(GROUP))

# POSTGRES=PORT is a PostgreSQL at 127.0.0.1 with a user, a password and a database `flatbed`; it is measured if named.
bench-worker: need-rust ## what the worker delivers to files, HTTP, SQLite and PostgreSQL a second; results in target/bench
	cargo build --release --package flatbed --package flatbed-bench
	mkdir -p $(target)/bench
	$(target)/release/flatbed-bench worker --flatbed $(target)/release/flatbed --directory $(target)/bench \
	  $(if $(POSTGRES),--postgres $(POSTGRES)) | tee $(target)/bench/worker.jsonl

bench: need-rust bench-engine ## measure beside pouchdb-server and the raw engine, and on a simulated cluster; results in target/bench
	cargo build --release --package flatbed --package flatbed-bench
	mkdir -p $(target)/bench
	if command -v npm >/dev/null; then \
	  npm install --prefix $(target)/bench --no-save --no-audit --no-fund --loglevel=error pouchdb-server@4.2.0; \
	else echo 'npm is missing: measuring without pouchdb-server' >&2; fi
	pouchdb='$(target)/bench/node_modules/pouchdb-server/bin/pouchdb-server'; \
	$(target)/release/flatbed-bench suite --flatbed $(target)/release/flatbed --directory $(target)/bench \
	  $$([ -e "$$pouchdb" ] && echo --pouchdb "$$(realpath "$$pouchdb")")
	$(target)/release/flatbed-bench access --flatbed $(target)/release/flatbed --directory $(target)/bench --seconds 3 \
	  --rounds 5 | tee $(target)/bench/access.jsonl
	$(target)/release/flatbed-bench sync --flatbed $(target)/release/flatbed --directory $(target)/bench --rounds 3 \
	  | tee $(target)/bench/sync.jsonl
	$(target)/release/flatbed-bench channels --flatbed $(target)/release/flatbed --directory $(target)/bench --rounds 3 \
	  --documents 1000000 | tee $(target)/bench/channels.md
	if command -v npm >/dev/null; then \
	  $(MAKE) --no-print-directory tests/node_modules/.package-lock.json; \
	  FLATBED_BIN='$(abspath $(target))/release/flatbed' node tests/bench/pouchdb.mjs | tee $(target)/bench/pouchdb.md; \
	  FLATBED_BIN='$(abspath $(target))/release/flatbed' node tests/bench/functions.mjs | tee $(target)/bench/functions.md; \
	else echo 'npm is missing: replication with PouchDB is not measured' >&2; fi

# make bench-feeds CASE=1000of1-100 ROUNDS=3 runs one case three times; a star at the end stands for any end.
bench-feeds: need-rust ## measure thousands of followers of changes feeds; results in target/bench/feeds.md
	cargo build --release --package flatbed --package flatbed-bench
	$(target)/release/flatbed-bench feeds --flatbed $(target)/release/flatbed --directory $(target)/bench --documents 1000000 \
	  $(if $(CASE),--case '$(CASE)') $(if $(ROUNDS),--rounds $(ROUNDS))

bench-engine: need-rust ## measure the engine beside plain LMDB; results in target/bench/engine.md
	cargo build --release --package foundationdb-sys --example engine_bench
	mkdir -p $(target)/bench
	$(target)/release/examples/engine_bench --output $(target)/bench/engine.md
	if command -v taskset >/dev/null; then \
	  taskset -c 0 $(target)/release/examples/engine_bench --output $(target)/bench/engine.md --append points ranges scan commits; \
	else echo 'taskset is missing: not measured on one core' >&2; fi

tests/pouchdb-suites/node_modules/.package-lock.json: tests/pouchdb-suites/package-lock.json | need-npm
	cd tests/pouchdb-suites && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json

tests/node_modules/.package-lock.json: tests/package-lock.json
	cd tests && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.package-lock.json

need-rust:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install Rust 1.88 or later from https://rustup.rs'; exit 1; }
	@command -v cc >/dev/null || { echo 'cc is missing: install a C compiler (Debian: apt install build-essential)'; exit 1; }

need-npm:
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js 20 or later (Debian: apt install nodejs npm)'; exit 1; }

need-python:
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { echo 'python3 with venv is missing (Debian: apt install python3-venv)'; exit 1; }
