# agentsh: build, test, demo. A target that needs something installs it.
# The Go that go.mod asks for, fetched where the installed one is older.
GO       ?= $(CURDIR)/packaging/go.sh
TOOLS    ?= $(CURDIR)/.tools
LINT     := $(TOOLS)/golangci-lint-v2.12.0
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
# As in .goreleaser.yml: packages that gain no time by inlining are built without it. 0.18 MB less.
SMALL    := github.com/spf13/... mvdan.cc/... agentsh/cmd/... agentsh/policy/policytest agentsh/internal/project
STATIC   := -trimpath -tags netgo,osusergo $(SMALL:%=-gcflags=%=-l) -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static"'
# The collector that marks whole spans writes to each new span of the heap: 1.08 x of the processor time of a start.
SANDBOX  := GOEXPERIMENT=nogreenteagc $(GO) build $(STATIC)
# Kernel tests need root; the build does not.
AS_ROOT   = $(shell [ "$$(id -u)" = 0 ] || echo sudo env PATH="$(PATH)" GOCACHE=$(TOOLS)/root-cache GOMODCACHE=$$($(GO) env GOMODCACHE))
# The tests that run the programs run these, in targets that need build.
BUILT    := AGENTSH_PROGRAMS=$(CURDIR)/bin
CONTROL  := CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)'

.PHONY: all alike learn ordinary ordinary-check services help build demo test check lint tidy deadcode vuln race fuzz report-check fsx databases coherence million streams commands cross probes evasions race-probes beside trace agents inspector conformance blaxel soak
.PHONY: bench workloads deps deps-check deps-packages packages package-files release-check reproduce install-test fresh places platforms kernels arm64 suites suites-smoke clean

all: build

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

build: deps ## bin/agentsh and bin/agentctl
	$(SANDBOX) -o bin/agentsh ./cmd/agentsh
	$(CONTROL) -o bin/agentctl ./cmd/agentctl

demo: build ## an agent fixes a failing test in a sandbox
	rm -rf out/fix-bug
	examples/fix-bug/prepare.sh
	bin/agentctl run examples/fix-bug/harness.yaml --repo examples/fix-bug/repo --out out/fix-bug

# Kernel tests included; a missing kernel feature fails.
test: deps-check build ## all tests, with the kernel tests
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) $(GO) test -timeout 1h ./...

check: lint race cross ## all checks for a change: about 40 minutes on two processors

# The cache of the linter has paths of the checkout.
lint: deps-check $(LINT) $(TOOLS)/actionlint-v1.7.7 tidy deadcode ## linters, go.mod, unused code
	GOLANGCI_LINT_CACHE=$(CURDIR)/.tools/lint-cache $(LINT) run ./...
	shellcheck bash_startup.sh packaging/*.sh packaging/scripts/*.sh examples/*/*.sh test/evasions/*.sh test/evasions/own/*/*.sh test/suites/*.sh test/*.sh test/commands/*.sh test/install/*.sh test/arm64/*.sh test/kernels/*.sh test/vm/*.sh test/places/*.sh test/platforms/*.sh test/agents/*.sh test/ordinary/*.sh test/cluster/*.sh bench/*.sh .ci/run
	$(TOOLS)/actionlint-v1.7.7

tidy:
	$(GO) mod tidy -diff
	cd test/kubernetes && $(GO) mod tidy -diff && $(GO) vet .
	cd test/otlp && $(GO) mod tidy -diff && $(GO) vet .

# Code that neither a program nor a test reaches. The methods named group mark types.
deadcode: $(TOOLS)/deadcode-v0.52.0
	! $(TOOLS)/deadcode-v0.52.0 -test -tags netgo,osusergo ./... | grep -v 'Request\.group$$'

# Needs the vulnerability database, which is read over the network.
vuln: ## known vulnerabilities in the called code
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

# The seeds run with every test. FUZZTIME is per target.
FUZZTIME ?= 30s
fuzz: ## every fuzz target for FUZZTIME (30s): about 20 minutes
	GO="$(GO)" test/fuzz.sh $(FUZZTIME)

# One file, eight seeds of a million operations each, half of them without
# passthrough: half an hour.
fsx: deps-check ## one file compared with a model, 8,000,000 operations: half an hour
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 FSX_STEPS=1000000 $(GO) test -timeout 3h -v -run TestOneFileHoldsWhatWasWrittenToIt ./fuse

# Processes of two sessions and the host write to a SQLite database, in three ways: with a
# rollback journal, with a write-ahead log, and without passthrough.
databases: deps-check ## SQLite shared by sessions and the host, with integrity_check: 15 minutes
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 AGENTSH_SQLITE_SECONDS=300 $(GO) test -timeout 1h -v -run TestADatabaseIsSharedBySessionsAndTheHost ./fuse

# 100,000 streams of all kinds through the proxy, compared byte by byte.
streams: ## 100,000 streams through the proxy, byte by byte: 20 minutes
	STREAMS=100000 $(GO) test -timeout 3h -v -run TestStreamsOfAllKindsPassUnchanged ./supervisor/egress

# The scripts of installed packages, and of a few more that apt downloads.
COMMANDS ?= git-annex dkms initramfs-tools openssh-server postfix
commands: ## the part of harmless commands that hooks refuse: a minute
	test/commands/collect.sh out/commands $(COMMANDS)
	COMMANDS=$(CURDIR)/out/commands $(GO) test -count=1 -v -run TestCommandsOfPackagesAreNotRefused ./controller/hook

# What explain, replay and test say about 1,000 generated programs, and what a session does.
alike: deps-check ## 1,000 programs as explain, replay and test find them, and as a session does: a minute
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 AGENTSH_ALIKE=1000 $(GO) test -count=1 -v -run TestAuthorsAndSessions ./cmd/agentsh/policycmd

# Postgres and Redis of Debian outside, their clients in sessions.
services: deps-check ## databases of the machine, reached from sessions by a rule for localhost: a minute
	packaging/deps.sh services
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 AGENTSH_SERVICES=1 $(GO) test -count=1 -v -run TestDatabasesOfTheMachine ./supervisor

# dockerd and podman of Debian, in namespaces of their own.
.PHONY: engines
engines: deps-check build ## sandboxes in containers of real engines, their faults and their ends, hostile images: 10 minutes
	packaging/deps.sh places
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_ENGINES=1 $(GO) test -p 1 -timeout 1h -count=1 -run 'TestContainerEngines|TestRunsInContainersOf|TestContainersThatEndAreExplained|TestHostileImagesOf' ./controller/sandbox/sandboxtest ./cmd/agentctl
	test/agents/install.sh $(TOOLS)/agents
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_ENGINES=1 AGENTSH_AGENTS=$(abspath $(TOOLS))/agents $(GO) test -count=1 -run TestClaudeOutsideMendsABugInAContainer ./test/agents

# Overhead of runs: what they cost in all, as the agent does nothing. THOUSAND is their number.
.PHONY: thousand
THOUSAND ?= 1000
thousand: deps-check build ## a batch of 1,000 runs that do nothing, 8 at once: their processor time and memory: 5 minutes
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_THOUSAND=$(THOUSAND) $(GO) test -timeout 1h -count=1 -v -run TestShortRunsOfABatchAreCheap ./cmd/agentctl

# The tests of each change kill once in each step. MOMENTS is how often this does.
.PHONY: crash
MOMENTS ?= 5
crash: deps-check build ## runs, batches and sandboxes that are killed, or whose disk is full, five times in each step: an hour
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) $(GO) test -timeout 3h -count=1 -v \
		-run 'KilledAtAnyMoment|StoppedRunLeaves|FullDisk|DiskThatIsFull|FailsAtRandom' ./cmd/agentctl -moments=$(MOMENTS)

# OpenTelemetry's collector is built from the module proxy. It is a module of its own.
.PHONY: otlp
otlp: deps-check build ## runs export to OpenTelemetry's own collector, which is killed in the middle: a minute
	cd test/otlp && $(AS_ROOT) env AGENTCTL=$(CURDIR)/bin/agentctl $(GO) test -count=1 -v .

.PHONY: prometheus
prometheus: deps-check build ## a Prometheus server of Debian scrapes a batch and the place of its sandboxes: a minute
	packaging/deps.sh prometheus
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_PROMETHEUS=1 $(GO) test -count=1 -v -run TestAPrometheusServerScrapes ./cmd/agentctl

# The backend for clusters, against a double of the API server. It is a module of its own.
.PHONY: kubernetes cluster
kubernetes: deps-check build ## sandboxes in pods of a double, with upstream's streams and real processes: a minute
	cd test/kubernetes && $(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) $(GO) test -race -count=1 .

# Kubernetes, containerd and the others are built from the module proxy: a quarter of an hour, once.
CLUSTER := $(TOOLS)/cluster
cluster: deps-check build ## sandboxes in pods of a real cluster of one node, its faults and its ends: 10 minutes
	packaging/deps.sh places
	GO=$(GO) test/cluster/build.sh $(CLUSTER)
	$(AS_ROOT) env GO="$(GO)" EVASIONS=$(EVASIONS) test/cluster/run.sh $(CLUSTER)

# Git, shell, Python, Node, Go, Rust, Java, C and Ruby: test/ordinary/rows.tsv.
ordinary: build ## usual commands of eight stacks under agent-sandbox as natively, as root and as a user: 6 minutes
	packaging/deps.sh ordinary
	$(AS_ROOT) test/ordinary/run.sh

ordinary-check: build ## ordinary, in sessions of root alone
	packaging/deps.sh ordinary
	$(AS_ROOT) env USERS=root test/ordinary/run.sh

# Record, learn and run again: eight stacks, each under six of the shipped policies.
learn: deps-check ## policies learned from eight stacks under six policies: 5 minutes
	packaging/deps.sh learn
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 AGENTSH_LEARN=all $(GO) test -timeout 1h -count=1 -v -run TestALearnedPolicy ./cmd/agentsh/policycmd

# Saves of editors, installs, builds and commits on the host while a session works.
coherence: deps-check ## 200 rounds of what the host does to a workspace in use: 20 minutes
	packaging/deps.sh coherence
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 COHERENCE_ROUNDS=200 $(GO) test -timeout 3h -v \
		-run 'TestSavesOfTheHost|TestTheHost|TestACommitAfter|TestManyRanges|TestToolsOfTheHost|TestTwoSessionsCommitWithout' ./fuse

# What a file server remembers of a million files.
million: deps-check ## memory of the file server for a million files
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(GO) test -run XXX -bench MillionFiles -benchtime 1x ./fuse

# Tests of much data or of many generated cases, in which nothing is concurrent, and their packages.
BULK  := TestAPatchOfLikeLinesEnds|TestAPatchOfManyLargeFilesIsRefused|TestOutputsOfAllCommandsAreBounded|TestArgumentsOfWaitingCallsAreBounded|TestAListHasABound|TestPacksPassTheirTests|TestTheFilterDecidesEveryNumberAsPlanned|TestTheStackIsRebuiltOnArm64|TestHostileFilesCostLittle|TestABufferIsAQueue|TestTheNamesOfChangesAreBoundedExactly|TestTheNamesOfACopyAreBounded|TestFilesThatGrowAreRefusedEarly|TestMemoryDoesNotGrowWithTheFile|TestThisRepositoryHasNoCriticalFinding|TestTheRenderedPolicyDecidesLikeTheOriginal
BULKY := ./controller/tools ./controller/sandbox/blaxel ./cmd/agentsh/policycmd ./seccomp ./seccomp/target ./policy/syntax ./internal/resume ./controller/extract ./internal/channel ./controller/batch ./controller/scan ./controller/openshell
# The tests of cmd start built programs: of them, those run with the detector that run the program's code in their own process.
# What go vet finds, lint finds.
RACE = $(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) GORACE=atexit_sleep_ms=0 $(GO) test -vet=off -p 2 -timeout 45m
race: deps-check build ## all tests, under the race detector but for those of built programs and of bulk data
	failed=; \
	$(RACE) -race -skip '^($(BULK))$$' $$($(GO) list ./... | grep -v '^agentsh/cmd/agentctl$$\|^agentsh/cmd/agentsh$$') || failed=1; \
	$(RACE) -run '^($(BULK))$$' $(BULKY) || failed=1; \
	$(RACE) ./cmd/agentctl ./cmd/agentsh || failed=1; \
	$(RACE) -race -run 'TestScripts|InOneProcess' ./cmd/agentctl ./cmd/agentsh || failed=1; \
	[ ! "$$failed" ]

cross: deps-check ## build both programs for amd64 and arm64
	GOARCH=amd64 $(SANDBOX) -o bin/amd64/agentsh ./cmd/agentsh
	GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc \
		PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig $(SANDBOX) -o bin/arm64/agentsh ./cmd/agentsh
	GOARCH=amd64 $(CONTROL) -o bin/amd64/agentctl ./cmd/agentctl
	GOARCH=arm64 $(CONTROL) -o bin/arm64/agentctl ./cmd/agentctl

$(LINT):
	GOBIN=$(TOOLS)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
	mv $(TOOLS)/bin/golangci-lint $@

# Packages. The version is the tag's, or counts the commits since none; every file
# has the time of the commit. GOFLAGS of the machine must not change what is built.
export PACKAGE_VERSION ?= $(shell packaging/version.sh)
export SOURCE_DATE_EPOCH   ?= $(shell git -c safe.directory='*' log -1 --format=%ct 2>/dev/null || echo 0)
export COMMIT  ?= $(shell git -c safe.directory='*' rev-parse HEAD 2>/dev/null || echo none)
NFPM    := $(TOOLS)/nfpm-v2.45.2
RELEASE := $(GO) run ./packaging/release

packages: deps-packages $(NFPM) ## deb, rpm, apk, Arch packages and archives in out/packages
	$(RELEASE) packages --version $(PACKAGE_VERSION) --commit $(COMMIT) --epoch $(SOURCE_DATE_EPOCH) --nfpm $(NFPM)

# What .goreleaser.yml packs besides programs and files of this tree.
package-files:
	$(RELEASE) files --version $(PACKAGE_VERSION) --commit $(COMMIT) --epoch $(SOURCE_DATE_EPOCH) --out out/host

# About 8 minutes when goreleaser has to be built.
release-check: deps-packages $(NFPM) $(TOOLS)/goreleaser-v2.15.2 ## check that goreleaser makes the same packages
	packaging/release-check.sh $(TOOLS)/goreleaser-v2.15.2 $(NFPM)

# A second build, of a copy elsewhere, without anything that the first left.
reproduce: packages ## check that a second build gives the same bytes
	packaging/reproduce.sh $(NFPM)

# The packages in roots of their own: 2 minutes, and one more for the first root.
install-test: packages $(TOOLS)/root-bookworm.tar ## install, upgrade and remove each package in a new root
	$(AS_ROOT) test/install/run.sh out/packages $(TOOLS)/root-bookworm.tar $(NFPM)

# Debian 12 and 13 with make, git and apt alone: what the README says must do.
FRESH ?= bookworm trixie
fresh: ## make demo on a fresh Debian 12 and 13: 10 minutes
	for suite in $(FRESH); do $(AS_ROOT) test/install/fresh.sh $$suite demo || exit; done

$(TOOLS)/root-bookworm.tar: | packaging/root.sh
	$(AS_ROOT) packaging/root.sh bookworm $@

$(TOOLS)/deadcode-v0.52.0:
	GOBIN=$(TOOLS)/bin $(GO) install golang.org/x/tools/cmd/deadcode@v0.52.0
	mv $(TOOLS)/bin/deadcode $@

$(NFPM):
	GOBIN=$(TOOLS)/bin $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
	mv $(TOOLS)/bin/nfpm $@

$(TOOLS)/goreleaser-v2.15.2:
	GOBIN=$(TOOLS)/bin $(GO) install github.com/goreleaser/goreleaser/v2@v2.15.2
	mv $(TOOLS)/bin/goreleaser $@

$(TOOLS)/actionlint-v1.7.7:
	GOBIN=$(TOOLS)/bin $(GO) install github.com/rhysd/actionlint/cmd/actionlint@v1.7.7
	mv $(TOOLS)/bin/actionlint $@

probes: build ## bypasses of this tree: each is blocked inside and works outside
	$(AS_ROOT) test/evasions/own.sh

# The corpus is not a part of this tree: EVASIONS says where it is.
EVASIONS ?= $(CURDIR)/../shared/evasions
evasions: build ## the external corpus of bypasses in the directory EVASIONS
	EVASIONS=$(EVASIONS) test/evasions/run.sh
	EVASIONS=$(EVASIONS) SHARE_NETWORK=1 test/evasions/run.sh net control
	EVASIONS=$(EVASIONS) AS_USER=1000 test/evasions/run.sh file control

# The tests of sessions and of the loop with the engine for kernels without a listener. Left out are rules
# below /proc, which it cannot hold, and what only a listener has.
trace: deps-check build ## the tests of sessions with the trace engine: 10 minutes
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 AGENTSH_ENGINE=trace $(GO) test -p 1 -timeout 30m -skip \
		'TestAMachineWithoutAMechanism|TestTheCallerLearns|OfProc|Opener|TestAnExchangedNameOpens|TestADirectoryThatCannotBeSearched|BehindAFollower|FollowedAreBounded|IsLetGo' \
		./supervisor ./supervisor/notify/...

# The corpus below listeners of another supervisor: test/outer/outer.c. What a session does not hold
# there is in test/evasions/beside.tsv. Below the last one a session is that of a user, without an engine.
BESIDE := command args shell file supervisor kernel env control signal net
OUTER  := $(CURDIR)/out/outer
beside: build ## the external corpus below the listener of another supervisor: 20 minutes
	mkdir -p out && cc -O2 -Wall -Wextra -Werror -o $(OUTER) test/outer/outer.c
	for listener in plain listener; do \
		OUTER=$(OUTER) BESIDE=$$listener DEGRADED=call_rules EVASIONS=$(EVASIONS) test/evasions/run.sh $(BESIDE) || exit; \
	done
	OUTER=$(OUTER) BESIDE=whole DEGRADED="nested_commands, cgroup" AS_USER=1000 EVASIONS=$(EVASIONS) test/evasions/run.sh $(BESIDE)

# The probes that race, each 100,000 times: in rounds, as the corpus gives a
# probe ten minutes. An hour.
race-probes: build ## the race probes, 100,000 times each: an hour
	for round in $$(seq 20); do \
		RACE_N=5000 PROBE_TIMEOUT=600 ONLY="$$(cd $(EVASIONS) && grep -l RACE_N */*.sh | xargs -n1 basename -s .sh | tr '\n' ' ')" \
			EVASIONS=$(EVASIONS) test/evasions/run.sh command file net || exit; \
	done

# Real agent programs, installed from npm where they are missing, in sandboxes
# against a model of the tests.
agents: deps-check build ## real agent programs with a fake model server
	test/agents/install.sh $(TOOLS)/agents
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_AGENTS=$(TOOLS)/agents $(GO) test -timeout 30m ./test/agents

# The command line of the protocol's inspector, from npm.
inspector: build ## the inspector of MCP calls tools of a session: half a minute
	$(AS_ROOT) test/agents/inspector.sh bin

# Generated code is in the tree: this needs protoc of Debian.
.PHONY: proto
proto: ## the messages of OpenShell's gateway from internal/openshellpb/*.proto
	GOBIN=$(abspath $(TOOLS))/bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	GOBIN=$(abspath $(TOOLS))/bin $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	cd internal/openshellpb && PATH=$(abspath $(TOOLS))/bin:$$PATH protoc --go_out=. --go_opt=paths=source_relative \
		--go-grpc_out=. --go-grpc_opt=paths=source_relative openshell.proto logs.proto

# The vendor's own library, from npm, drives the double of Blaxel before the backend does.
blaxel: deps-check build ## Blaxel's library against the double of the tests: half a minute
	mkdir -p $(TOOLS)/blaxel-0.3.21
	[ -e $(TOOLS)/blaxel-0.3.21/node_modules/@blaxel/core ] || \
		npm install --no-audit --no-fund --loglevel=error --prefix $(TOOLS)/blaxel-0.3.21 @blaxel/core@0.3.21
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(BUILT) AGENTSH_BLAXEL_SDK=$(abspath $(TOOLS))/blaxel-0.3.21 $(GO) test -count=1 -run TheVendorsLibrary ./controller/sandbox/blaxel

# Its suite needs Node.js 22, from npm too.
conformance: build ## the conformance suite of MCP against agentctl mcp --listen: a minute
	$(AS_ROOT) test/agents/conformance.sh bin $(TOOLS)

# The page of a run in Chromium, which it installs: 400 MB, a minute.
report-check: deps-check ## open the page of a run in Chromium
	packaging/deps.sh browser
	REPORT_CHECK=1 $(GO) test -count=1 -run 'Browser|Window' ./controller/report ./controller/webui

# Full size: 100,000 execs, 10,000 live processes, storms of signals, and the
# concurrent tests a hundred times under the race detector. About an hour.
soak: deps-check build ## 100,000 execs, 10,000 processes, signal storms: an hour
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 $(GO) test ./supervisor -run 'ManyCommands|ThousandsOf|AStormOf' -v -soak -timeout 60m
	$(AS_ROOT) env AGENTSH_TEST_STRICT=1 GORACE=atexit_sleep_ms=0 $(GO) test -race -count=100 -p 1 -timeout 120m \
		./seccomp ./seccomp/target ./supervisor/notify ./supervisor/launch

# The same checks in containers and small roots, as recorded: doc/platforms/places.md. Further
# places: docker-examples, docker-IMAGE and podman-IMAGE with debian, ubuntu, node, python, golang or alpine,
# kernel-5.10 kernel-6.1 kernel-6.12 kernel-newest arm64-6.1
# gVisor of 2026-09-05, of the branch that go install can build: 5 minutes, once. Static, or it does not start.
RUNSC  := $(TOOLS)/runsc-v0.0.0-20260905035102
PLACES ?= musl no-fuse no-userns docker-root docker-user docker-profile docker-root-profile docker-alpine docker-page podman podman-unmasked podman-profile podman-root-profile gvisor gvisor-user gvisor-files gvisor-files-user gvisor-docker gvisor-page
places: build $(if $(filter arm64-%,$(PLACES)),cross) $(if $(filter gvisor%,$(PLACES)),$(RUNSC)) ## the same checks in containers, minimal roots and virtual machines
	packaging/deps.sh places $(if $(filter docker-examples,$(PLACES)),places-examples) $(if $(filter arm64-%,$(PLACES)),places-arm64)
	GO="$(GO)" EVASIONS=$(EVASIONS) RUNSC=$(RUNSC) test/places/run.sh $(PLACES)

# What the scripts for vendors have in common, at places that are this machine, and that each of them
# deletes what it made. The vendors' own scripts need accounts: doc/platforms.
platforms: build ## the smoke test of remote places, by a shell, a WebSocket and SSH of this machine: 5 minutes
	test/platforms/deletes.sh
	$(AS_ROOT) test/platforms/local.sh

$(RUNSC):
	GOBIN=$(TOOLS)/bin CGO_ENABLED=0 GOFLAGS=-mod=mod $(GO) install gvisor.dev/gvisor/runsc@v0.0.0-20260905035102-160fafc42237
	mv $(TOOLS)/bin/runsc $@

# Emulated machines are slow: a quarter of an hour each. On 5.10 the configuration allows landlock.
KERNELS ?= 5.10 6.1 6.12 newest
kernels: build ## the demo and the README's session on Debian's kernels, in virtual machines: an hour
	packaging/deps.sh places
	$(AS_ROOT) env GO="$(GO)" test/kernels/run.sh $(KERNELS)

# Machines of the backend vm, each a sandbox. Emulated: 2 minutes each. On 5.10 the configuration allows landlock.
# With -vsock their streams are AF_VSOCK through a Unix socket, as with Firecracker.
VM_KERNELS ?= 5.10 6.1 6.12 6.12-vsock
.PHONY: vm
vm: build ## sandboxes in virtual machines of qemu, with kernels of Debian: 10 minutes
	packaging/deps.sh places
	$(AS_ROOT) env GO="$(GO)" test/vm/run.sh $(VM_KERNELS)

.PHONY: vm-evasions
vm-evasions: build ## the external corpus in sandboxes in virtual machines: 20 minutes
	packaging/deps.sh places
	$(AS_ROOT) env EVASIONS=$(EVASIONS) test/vm/evasions.sh $(VM_EVASIONS)

# Tests of sessions with both engines and the corpus, in virtual machines of arm64. ARM64 names some of the
# parts, as in ARM64=supervisor/notify:trace. ARM64_KERNEL=trixie/linux-image-arm64-16k has pages of 16 KiB. The tests of
# sessions without namespaces need Landlock scopes, so Linux 6.12.
ARM64 ?=
ARM64_KERNEL ?= trixie/linux-image-cloud-arm64
arm64: cross ## the tests of sessions and the external corpus on arm64, in virtual machines: hours
	packaging/deps.sh places places-arm64
	$(AS_ROOT) env GO="$(GO)" EVASIONS=$(EVASIONS) KERNEL=$(ARM64_KERNEL) test/arm64/run.sh $(ARM64)

# Minutes, on a machine that does nothing else: doc/performance.md.
bench: build ## the figures of doc/performance.md: 20 minutes on an idle machine
	bench/run.sh

# Real work natively and in a session: the results must be the same. 2 GiB in /var/tmp.
workloads: build ## compare real work natively and in a session
	packaging/deps.sh bench
	bench/workloads.sh /var/tmp/agentsh-workloads

# Other people's test suites natively and in sessions, compared: hours. SUITES names
# some of them; test/suites/run.sh says what else can be chosen.
SUITES ?= cpython go bash jobs postgres redis nginx chromium stress_ng git
suites: build ## compare third-party test suites in sessions and natively: hours
	packaging/deps.sh suites
	test/suites/run.sh $(SUITES)

# The part that takes minutes, for CI.
suites-smoke: build ## the short part of suites: minutes
	packaging/deps.sh suites
	POLICIES=default USERS=root test/suites/run.sh redis postgres
	POLICIES=default USERS=root GROUPS_OF_SUITE='os os/exec syscall' test/suites/run.sh go
	POLICIES=default USERS=root GROUPS_OF_SUITE='test_os test_posix test_fcntl test_shutil test_tempfile' test/suites/run.sh cpython

deps:
	packaging/deps.sh build

deps-check:
	packaging/deps.sh build check

deps-packages:
	packaging/deps.sh build check packages

clean: ## remove the results of builds
	rm -rf bin out dist
