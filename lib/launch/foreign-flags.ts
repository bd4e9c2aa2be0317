// Advice for options of `vllm serve` and llama-server: the options of `ds serve` that replace them.

const context = 'Use --context N.';
const name = 'Use --model-name NAME.';
const ranks = 'Use --tp N.';
const sequences = 'Use --config FILE with "max_ragged_sequence_count".';
const layers = 'All layers are on the GPU; docs/large-inference.md shows models larger than a GPU.';
const task = 'Leave it out: config.json of the model decides.';
const always = 'Leave it out: it is always on.';

const ADVICE: Readonly<Record<string, string>> = {
  '--max-model-len': context,
  '--ctx-size': context,
  '-c': context,
  '--served-model-name': name,
  '--alias': name,
  '-a': name,
  '-m': 'Give the folder or GGUF file as the argument.',
  '-hf': 'Give the name as the argument.',
  '--api-key': 'Set DS_API_KEY, or use --api-key-file FILE.',
  '--tensor-parallel-size': ranks,
  '-tp': ranks,
  '--gpu-memory-utilization': 'Use --config FILE with "kv_cache": { "memory": BYTES }.',
  '--max-num-seqs': sequences,
  '--parallel': sequences,
  '-np': sequences,
  '--n-gpu-layers': layers,
  '-ngl': layers,
  '--cpu-offload-gb': layers,
  '--quantization': 'Leave it out; --config FILE with "quant" quantizes 16-bit models.',
  '--enable-lora': 'Use --adapter NAME=FOLDER.',
  '--lora-modules': 'Use --adapter NAME=FOLDER.',
  '--lora': 'Use --adapter NAME=FOLDER.',
  '--tool-call-parser': 'Use --tool-parser NAME.',
  '--enable-auto-tool-choice': always,
  '--enable-prefix-caching': always,
  '--jinja': always,
  '--cont-batching': always,
  '--trust-remote-code': 'Leave it out: the server runs no code of a model.',
  '--enforce-eager': 'Use --no-graphs.',
  '--allowed-origins': 'Use --cors ORIGIN.',
  '--enable-log-requests': 'Use --log-requests.',
  '--task': task,
  '--runner': task,
  '--embedding': task,
  '--embeddings': task,
  '--reranking': task,
};

/** Adds a line with advice to commander's error about an option of another server. */
export function withAdvice(error: string): string {
  const [, flag = ''] = /unknown option '(--?[^'=]+)/.exec(error) ?? [];
  const advice = Object.hasOwn(ADVICE, flag) ? ADVICE[flag] : undefined;
  return advice === undefined ? error : error.replace(/\n[\s\S]*$/, `\n(${advice})\n`);
}
