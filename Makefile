# Everything this project is built and checked with. `make help` explains the targets.
SHELL := /bin/bash
.SHELLFLAGS := -Eeuo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
SCRIPTS := integration/scripts

# Static and the same from every folder. The revision comes in by VERSION: asking git from within the Go command
# fails in a checkout that another user owns.
GOBUILD := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false
STRIP   := -s -w
STAMP   := -X main.version=$(VERSION)

##@ Use
.PHONY: demo
demo: ## Real tool calls in warm containers on the embedded runtime; needs root and Go, installs the rest
	@$(SCRIPTS)/demo.sh

.PHONY: build
build: guest ## bin/orchestrator, one static binary with the guest embedded
	$(GOBUILD) -ldflags '$(STRIP) $(STAMP)' -o bin/orchestrator ./cmd/orchestrator

.PHONY: image
image: ## The sandbox image, made once, in the cache; prints the path of its archive
	@docker/sandbox/build.sh --print-archive

.PHONY: image-browser
image-browser: ## The image of browser.open's sandboxes, on the sandbox image; prints the path of its archive
	@docker/sandbox/extend.sh docker/browser --print-archive

##@ Check
.PHONY: test
test: ## Everything: lint, unit with -race, fuzz, conformance and integration on all drivers, leftovers; needs root
	@$(SCRIPTS)/test.sh

.PHONY: check
check: ## The quick loop: format, vet and lint of what changed, and the unit tests without -race
	@$(SCRIPTS)/test.sh check

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint with the allowed imports as rules, go mod verify
	@$(SCRIPTS)/test.sh lint

.PHONY: unit
unit: ## The unit tests alone, with -race
	@$(SCRIPTS)/test.sh unit

.PHONY: bench
bench: ## The table of figures, on this machine
	@$(SCRIPTS)/test.sh bench

.PHONY: soak
soak: ## 2,000 calls and 200 leases on each driver, and what is left of them; writes docs/soak.md (half an hour, an idle machine)
	@$(SCRIPTS)/test.sh soak

.PHONY: fmt
fmt: ## gofmt over the tree
	gofmt -l -w .

##@ By hand
.PHONY: guest
guest: ## bin/guest with its programs, and the copies of them that are embedded
	$(GOBUILD) -ldflags '$(STRIP)' -o internal/guestbin/bin/guest ./cmd/guest
	$(GOBUILD) -ldflags '$(STRIP)' -o internal/guestbin/bin/guest-web ./cmd/web
	@mkdir -p bin && cp -f internal/guestbin/bin/guest internal/guestbin/bin/guest-web bin/

.PHONY: build-faults
build-faults: guest ## bin/orchestrator-faults, with the fault points that the tests kill it at
	$(GOBUILD) -tags faults -ldflags '$(STRIP) $(STAMP)' -o bin/orchestrator-faults ./cmd/orchestrator

.PHONY: deps
deps: ## Install what is missing of the distribution's packages (Debian, Ubuntu)
	@$(SCRIPTS)/deps.sh

.PHONY: engine-up
engine-up: ## Start the Docker Engine of the tests; prints its DOCKER_HOST
	@$(SCRIPTS)/engine.sh up

.PHONY: engine-down
engine-down: ## End that engine with all its containers
	@$(SCRIPTS)/engine.sh down

.PHONY: clean
clean: engine-down ## Remove what was built here; the cache in /var/cache/orchestrator stays
	rm -rf bin build internal/guestbin/bin/guest internal/guestbin/bin/guest-web

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile
	@printf '\nORCHESTRATOR_CACHE and ORCHESTRATOR_TEST_STATE name other folders than /var/cache/orchestrator\nand /var/lib/orchestrator-test.\n'
