#!/usr/bin/env bash
# Runs each example of the installed package on the CPU, where no development package is installed.
# PATH has node, npm, npx, sh and env only; Node strips types.
set -euo pipefail
examples=node_modules/@ds/native/examples
PATH=$PATH:$PWD/node_modules/.bin

run() {
  printf -- '-- %s\n' "$*"
  "$@" >example.log 2>&1 || { /usr/bin/cat example.log >&2; exit 1; }
}

# Node strips no types below node_modules, so a reader copies these first.
/usr/bin/cp "$examples"/*.ts .
for file in "$examples"/*.js *.ts; do
  case $file in */gpt2-options.js | */gpt2-text.js | */gpt2-tokenizer.js | */megatron-flags.js) continue ;; esac
  run node "$file" --help
  /usr/bin/grep -q '^node \|^ds ' example.log
done

# test/docs/commands.test.ts reads the names below.
/usr/bin/ln -s "$examples" examples
run node examples/gpt2-offload.js --steps 2 --seq 32 --batch 1 --sample 4 --device cpu
/usr/bin/grep -q '^text: .*/docs, .*/examples/tokenizer' example.log
run node examples/llama-finetune.js --device cpu --steps 4 --output chat
run node examples/llama-finetune.js --device cpu --steps 4 --lora --output adapter
run node examples/generate.js chat 'Which stage' --max_new_tokens 4 --device cpu
run node simple-model.ts simple
run ds --num_procs 2 trainer.ts trained # examples/trainer.ts
run ds --num_procs 2 examples/zero3-two-ranks.js ranks
run ds --num_procs 2 examples/pipeline.js --device cpu --steps 2
run ds --num_procs 2 examples/tensor-parallel.js --device cpu --steps 2
# own-model.js and own-model.ts: scripts/test-tarball trains and resumes them.
