# The short way to the scripts: `make` builds into build/, `make test` is ./test, `make demo` is ./demo.
.PHONY: all test demo clean check-peer check-quality check-memory check-speed check-versus check-windows check-shapes curve vector

all:
	@. tools/setup.sh && ath_build build

test:
	@./test

demo:
	@./demo

# Checks against llama.cpp and of long runs: minutes each, so not part of ./test. SHARED has the data and bench scripts.
SHARED ?= ../shared
CHECK = .cache/checks/bin/python
ATHANOR = build/bin/athanor
SMOLLM2 = .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA = .cache/models/gemma-3-270m-q4_k_m.gguf

check-peer: check-tools $(SMOLLM2) $(GEMMA)
	$(CHECK) bench/peer_logits.py --athanor $(ATHANOR) --text $(SHARED)/data/wikitext-2/wiki.test.raw $(SMOLLM2) $(GEMMA)

check-quality: check-tools $(SMOLLM2) $(GEMMA)
	$(CHECK) bench/quality_tables.py --athanor $(ATHANOR) --text $(SHARED)/data/wikitext-2/wiki.test.raw --smollm2 $(SMOLLM2) \
	    --gemma $(GEMMA) --write docs/quality.md

# The models of the demo; then every row of the table, half an hour or more; then speed against depth, and its picture.
VERSUS = $(CHECK) bench/versus.py --athanor $(ATHANOR) --peer $(SHARED)/bench/peer_bench.py
CURVE_FLAGS ?=
check-speed: check-tools $(SMOLLM2) $(GEMMA)
	$(VERSUS) --rows smollm2,gemma

check-versus: check-tools $(SMOLLM2) $(GEMMA)
	$(VERSUS) --all

curve: check-tools
	@. tools/setup.sh && ath_need_python .cache/plot bench/plot_requirements.txt
	$(VERSUS) --curve qwen3-l4 --out bench/machines/curve.csv $(CURVE_FLAGS)
	.cache/plot/bin/python bench/plot.py bench/machines/curve.csv -o docs/curve.svg \
		--table athanor:f16,athanor:turbo3,athanor:turbo3_tcq,llama.cpp:f16

check-memory: check-tools
	$(CHECK) bench/check_memory.py --athanor $(ATHANOR) --make-model $(SHARED)/bench/make_model.py

# Every window, every cache type, 4,096 tokens (./test has a quick version).
check-windows:
	@ATH_COMPLETE=1 ./test -k test_windows -rA

check-shapes: check-tools
	$(CHECK) bench/check_shapes.py --athanor $(ATHANOR) --make-model bench/make_model.py

# Logits of a vector set by llama.cpp: make vector NAME=olmoe (tests/models/vector.py).
vector: check-tools
	$(CHECK) bench/make_vector.py $(NAME)

.PHONY: check-tools
check-tools: all
	@. tools/setup.sh && ath_need_packages g++ python3 python3-venv python3-dev && ath_need_python .cache/checks bench/requirements.txt

$(SMOLLM2):
	@. tools/setup.sh && ath_need_smollm2 $@

$(GEMMA):
	@. tools/setup.sh && ath_need_gemma $@

# Leaves .cache (models, Python environment), which takes a download to fill again.
clean:
	rm -rf build
