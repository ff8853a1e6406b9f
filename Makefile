.PHONY: help demo test unit gate nightly texts check fmt lint docs sim settings bench coverage real-up real-down real-status e2e campaign fuzz console console-test alerts manifests conformance clean e2e-secured deny sbom planted

# Tools of a pinned version, which scripts/need fetches.
export PATH := $(CURDIR)/target/tools/bin:$(PATH)

help: ## the verbs
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## build, start everything, send some messages, leave it running
	@scripts/need cargo cc openssl-dev protoc && scripts/demo

test: ## all tests that need no server, one process each (T=name: those whose name has this in it)
	@scripts/need cargo cc openssl-dev protoc python3 cargo-nextest && cargo nextest run --workspace --locked --profile gate $(T)
	@$(if $(T),,cargo test --workspace --locked --doc --quiet)

unit: ## tests of the crates alone
	@scripts/need cargo cc openssl-dev protoc python3 cargo-nextest && cargo nextest run --workspace --locked --profile gate --lib $(T)

gate: ## what each change passes, as CI runs it: lint, all tests, those on real parts, the console (logs: target/gate)
	@scripts/gate

nightly: ## what is long, or rarely red: slim program, kills, TLS, judges from elsewhere, fuzzing, more worlds, planted bugs
	@scripts/gate nightly

check: fmt lint docs ## what must be clean before a commit

fmt: ## is the code formatted
	@cargo fmt --all --check && cargo fmt --manifest-path fuzz/Cargo.toml --check

lint: ## warnings are errors
	@scripts/need cargo cc openssl-dev protoc && cargo clippy --workspace --all-targets --locked -- -D warnings

docs: ## the documentation builds without a warning
	@scripts/need cargo cc openssl-dev protoc && RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

sim: ## ten times the seeds of the simulation of rules, fifty and more of that of whole systems
	@PACKETBOAT_SIM_SEEDS=100000 cargo test --profile worlds --workspace --test sim --locked -- --nocapture
	@PACKETBOAT_SIM_SEEDS=10000 cargo test --profile worlds --workspace --test system --locked -- --nocapture

planted: ## bugs planted in services: the simulation of whole systems finds each
	@scripts/need cargo cc openssl-dev protoc && scripts/planted run

settings: ## write docs/operations/{settings,metrics,limits,api}.md and openapi.json anew, from types and tables
	@PACKETBOAT_TEST_WRITE=1 cargo test --workspace --lib --locked -- the_reference_page_is_what_the_program_says the_page_of_metrics_is_the_table the_page_of_limits_is_the_table the_schema_of_the_api_is_what_the_program_answers the_page_of_the_api_has_the_table_of_routes

bench: ## the load generator against floor and server, in release
	@cargo run --release --locked --package bench -- all

coverage: ## which requirement lines no test cites yet
	@scripts/coverage

real-up: ## start Kafka, Redis, etcd and a CQL store (KAFKA=1|3 REDIS="single sentinel cluster" ETCD=1|3 CQL=1|3 TLS=1)
	@scripts/real/all up

real-down: ## stop them and keep their data (WIPE=1: remove it)
	@scripts/real/all down

real-status: ## which of them answer, where, with how much memory
	@scripts/real/all status

e2e: ## the tests that need the real parts (fresh ones: make real-up): the system, contract suites, all services, the page
	@scripts/need cargo cc openssl-dev protoc python3 cargo-nextest && scripts/e2e real

e2e-secured: ## the tests that need real parts with TLS and passwords (make real-up TLS=1)
	@scripts/need cargo cc openssl-dev protoc python3 cargo-nextest && scripts/e2e secured

campaign: ## kill everything, everywhere, on the real parts: under a steady chat, one part for minutes, after each effect, in a night of dead letters
	@scripts/need cargo cc openssl-dev protoc python3 cargo-nextest kcat && scripts/e2e campaign

SECONDS ?= 60
fuzz: ## bytes from strangers: frames, WebSockets, PROXY headers, HTTP heads, TLS, each for SECONDS=60
	@scripts/need cargo cc openssl-dev c++ protoc && scripts/fuzz $(SECONDS)

console: ## build the operators' console; the next build of the program holds it
	@scripts/need npm && scripts/console build

console-test: ## the console in a browser, over a real Packetboat (PACKETBOAT_PROGRAM, or target/debug/packetboat)
	@scripts/need npm chromium && scripts/console test

conformance: ## judges from elsewhere: Autobahn (Python 2.7), OpenSSL and testssl.sh, haproxy, nginx
	@scripts/conformance autobahn tls haproxy nginx

texts: manifests alerts ## what is not Rust: the schema, manifests, rules for alarms, and whether the planted bugs apply
	@scripts/buf lint && scripts/planted apply

alerts: ## check the rules for Prometheus, and what each says of made-up hours
	@scripts/need promtool && promtool check rules deploy/alerts/*.yml && promtool test rules deploy/alerts/tests/*.yml

deny: ## licences, bans, sources and advisories of other people's crates (builds cargo-deny at first use)
	@scripts/need cargo cargo-deny && scripts/deny

sbom: ## the crates of the program in CycloneDX, target/sbom/packetboat.cdx.json (builds cargo-cyclonedx at first use)
	@scripts/need cargo cargo-cyclonedx && scripts/sbom

manifests: ## render the Kubernetes manifests and check them
	@scripts/manifests

clean: ## build products and the data of demo and real parts, which are stopped
	@WIPE=1 scripts/real/all down && rm -rf target data web/node_modules web/dist/console
