# The tools are pinned, so that a new version of one never turns a green commit red.
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Modules of the repository: the program, and the generator of its assembly.
MODULES := . kernels/gen

.PHONY: build test lint tidy generate

build:
	CGO_ENABLED=0 go build -o coli ./cmd/coli

test:
	go test ./...

lint:
	@unformatted=$$(go run $(GOFUMPT) -l .) && test -z "$$unformatted" || { echo "not gofumpt's format: $$unformatted"; exit 1; }
	@for m in $(MODULES); do (cd $$m && go vet ./... && go run $(STATICCHECK) ./...) || exit 1; done

# Prints what go mod tidy would change, and fails if there is anything.
tidy:
	@for m in $(MODULES); do (cd $$m && go mod tidy -diff) || exit 1; done

# Needs glslc, and clang, llvm-strip and libbpf's headers. What is committed was made by those of Debian 12; others may give other bytes.
generate:
	go generate ./...
