# The short way to the scripts: `make` builds into build/, `make test` is ./test, `make demo` is ./demo.
.PHONY: all test demo clean

all:
	@. tools/setup.sh && ath_build build

test:
	@./test

demo:
	@./demo

# Leaves .cache (models, Python environment), which takes a download to fill again.
clean:
	rm -rf build
