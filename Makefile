# Builds and checks the project. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -Eeuo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
SCRIPTS := integration/scripts

# Static, and identical from every directory. VERSION carries the revision: asking git from within the Go command
# fails in a checkout owned by another user.
GOBUILD := CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false
STRIP   := -s -w
STAMP   := -X main.version=$(VERSION)

##@ Use
.PHONY: demo
demo: ## Run tool calls in warm containers on the embedded runtime; needs root and Go, installs the rest
	@$(SCRIPTS)/demo.sh

.PHONY: build
build: guest ## Build bin/orchestrator, one static binary with the guest embedded (GOARCH=arm64 for another machine)
	@test "$$($(GO) version -m internal/guestbin/bin/guest | grep -o 'GOARCH=.*')" = "GOARCH=$$($(GO) env GOARCH)" || \
		{ echo "the guest is not built for GOARCH=$$($(GO) env GOARCH): run make guest" >&2; exit 1; }
	$(GOBUILD) -ldflags '$(STRIP) $(STAMP)' -o bin/orchestrator ./cmd/orchestrator

.PHONY: package
package: build ## Build build/package/*.deb and *.rpm with man pages, completions and the systemd unit
	VERSION='$(VERSION)' GO='$(GO)' deploy/package/build.sh

.PHONY: test-package
test-package: package ## Install, upgrade, remove and purge the Debian package in a chroot, and check the rpm; needs root
	@$(SCRIPTS)/package-test.sh

.PHONY: client
client: ## Build bin/clients: the client for macOS and Windows, which uses a server on Linux
	for target in darwin/amd64 darwin/arm64 windows/amd64; do \
		suffix=; [ $${target%/*} != windows ] || suffix=.exe; \
		GOOS=$${target%/*} GOARCH=$${target#*/} $(GOBUILD) -ldflags '$(STRIP) $(STAMP)' \
			-o bin/clients/orchestrator-$${target%/*}-$${target#*/}$$suffix ./cmd/orchestrator; \
	done

.PHONY: image
image: ## Make the sandbox image once, in the cache; prints the path of its archive
	@docker/sandbox/build.sh --print-archive

.PHONY: image-browser
image-browser: ## Make the image for browser.open, based on the sandbox image; prints the path of its archive
	@docker/sandbox/extend.sh docker/browser --print-archive

##@ Check
.PHONY: test
test: ## Run everything: lint, unit with -race, fuzz, conformance and integration on all drivers, Kubernetes, leftovers; needs root
	@$(SCRIPTS)/test.sh

.PHONY: check
check: ## Check quickly: format, vet and lint of what changed, and the unit tests without -race
	@$(SCRIPTS)/test.sh check

.PHONY: lint
lint: ## Run gofmt, go vet, golangci-lint with its import rules, and go mod verify
	@$(SCRIPTS)/test.sh lint

.PHONY: unit
unit: ## Run the unit tests with -race
	@$(SCRIPTS)/test.sh unit

.PHONY: manifests
manifests: ## Write deploy/kubernetes/orchestrator.yaml from the Helm chart; builds Helm once
	@$(SCRIPTS)/manifests.sh >deploy/kubernetes/orchestrator.yaml

.PHONY: test-kubernetes
test-kubernetes: ## Run only the tests on a Kubernetes node of their own; needs root, builds Kubernetes once
	@$(SCRIPTS)/test.sh kubernetes

.PHONY: test-host
test-host: ## Run the product and its tests on Debian 13 with cgroup v2 in a virtual machine (SCOPE=full: all of them)
	@$(SCRIPTS)/host-test.sh $(SCOPE)

.PHONY: bench
bench: ## Measure on this machine and print the table of figures
	@$(SCRIPTS)/test.sh bench

.PHONY: soak
soak: ## Run 2,000 calls and 200 leases on each driver and look for leaks; writes docs/soak.md (30 minutes, needs an idle machine)
	@$(SCRIPTS)/test.sh soak

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -l -w .

##@ Other
.PHONY: guest
guest: ## Build bin/guest, its programs, and their embedded copies
	GOOS=linux $(GOBUILD) -ldflags '$(STRIP)' -o internal/guestbin/bin/guest ./cmd/guest
	GOOS=linux $(GOBUILD) -ldflags '$(STRIP)' -o internal/guestbin/bin/guest-web ./cmd/web
	@mkdir -p bin && cp -f internal/guestbin/bin/guest internal/guestbin/bin/guest-web bin/

.PHONY: dashboard
dashboard: ## Build internal/ui/static, the pages of /ui, from their sources; needs npm
	internal/ui/web/build.sh

.PHONY: build-faults
build-faults: guest ## Build bin/orchestrator-faults, with the failpoints that the tests use
	$(GOBUILD) -tags faults -ldflags '$(STRIP) $(STAMP)' -o bin/orchestrator-faults ./cmd/orchestrator

.PHONY: deps
deps: ## Install missing packages (Debian, Ubuntu)
	@$(SCRIPTS)/deps.sh --kubernetes

.PHONY: engine-up
engine-up: ## Start the test Docker Engine; prints its DOCKER_HOST
	@$(SCRIPTS)/engine.sh up

.PHONY: engine-down
engine-down: ## Stop the test Docker Engine and its containers
	@$(SCRIPTS)/engine.sh down

.PHONY: clean
clean: engine-down ## Remove build results; keeps the cache in /var/cache/orchestrator
	rm -rf bin build internal/guestbin/bin/guest internal/guestbin/bin/guest-web

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile
	@printf '\nORCHESTRATOR_CACHE and ORCHESTRATOR_TEST_STATE override /var/cache/orchestrator\nand /var/lib/orchestrator-test.\n'
