# agentsh: build, test, demo. A target that needs something installs it.
GO       ?= go
TOOLS    := $(CURDIR)/.tools
LINT     := $(TOOLS)/golangci-lint-v2.12.0
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
STATIC   := -trimpath -tags netgo,osusergo -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static"'
SANDBOX  := $(GO) build $(STATIC)
# Kernel tests need root; the build does not.
AS_ROOT  := $(shell [ "$$(id -u)" = 0 ] || echo sudo env PATH="$(PATH)" GOCACHE=$(TOOLS)/root-cache GOMODCACHE=$$($(GO) env GOMODCACHE))
CONTROL  := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'

.PHONY: all build demo test check lint race cross evasions soak bench deps deps-check clean

all: build

build: deps
	$(SANDBOX) -o bin/agentsh ./cmd/agentsh
	$(CONTROL) -o bin/agentctl ./cmd/agentctl

demo: build
	rm -rf out/fix-bug
	examples/fix-bug/prepare.sh
	bin/agentctl run examples/fix-bug/harness.yaml --repo examples/fix-bug/repo --out out/fix-bug

# Kernel tests included; a missing kernel feature fails.
test: deps-check build
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(GO) test ./...

check: lint race cross

lint: $(LINT)
	GOLANGCI_LINT_CACHE=$(TOOLS)/lint-cache $(LINT) run ./...
	shellcheck bash_startup.sh packaging/*.sh examples/*/*.sh test/evasions/*.sh bench/*.sh .ci/run

race: deps-check build
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -timeout 30m ./...

cross: deps-check
	GOARCH=amd64 $(SANDBOX) -o bin/amd64/agentsh ./cmd/agentsh
	GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc \
		PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(SANDBOX) -o bin/arm64/agentsh ./cmd/agentsh
	GOARCH=amd64 $(CONTROL) -o bin/amd64/agentctl ./cmd/agentctl
	GOARCH=arm64 $(CONTROL) -o bin/arm64/agentctl ./cmd/agentctl

$(LINT):
	GOBIN=$(TOOLS)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
	mv $(TOOLS)/bin/golangci-lint $@

# The corpus is not a part of this tree: EVASIONS says where it is.
EVASIONS ?= $(CURDIR)/../shared/evasions
evasions: build
	EVASIONS=$(EVASIONS) test/evasions/run.sh

# Full size: 100,000 execs, 10,000 live processes, storms of signals, and the
# concurrent tests a hundred times under the race detector. About an hour.
soak: deps-check build
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(GO) test ./supervisor -run 'ManyCommands|ThousandsOf|AStormOf' -v -soak -timeout 60m
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -count=100 -p 1 -timeout 120m \
		./seccomp ./seccomp/target ./supervisor/notify ./supervisor/launch

# Minutes, on a machine that does nothing else: doc/performance.md.
bench: build
	bench/run.sh

deps:
	packaging/deps.sh build

deps-check:
	packaging/deps.sh build check

clean:
	rm -rf bin out dist
