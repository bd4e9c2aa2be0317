// Continues one or more prompts with a language model from a Hugging Face folder.
// Run: node examples/generate.js FOLDER 'Once upon a time'    (--help lists the options)
'use strict';
const { parseArgs } = require('node:util');
const { DsError, initInference } = require('@ds/native');

const usage = `node examples/generate.js FOLDER PROMPT... [options]
  FOLDER              config.json, safetensors and tokenizer.json of a language model
  --max_new_tokens N  tokens to sample at most (default 64)
  --temperature T     temperature; 0: the likeliest token (default 0.8)
  --top_p P           probability mass of the likeliest tokens (default 0.95)
  --seed N            seed; equal seeds give equal texts (default 1)
  --n N               continuations of each prompt (default 1)
  --stop TEXT         stop text; repeat the option for several
  --dtype NAME        fp32, fp16 or bf16 (default: dtype of the files)
  --device NAME       cpu, cuda, cuda:N or auto (default: a GPU if present)`;

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    max_new_tokens: { type: 'string', default: '64' },
    temperature: { type: 'string', default: '0.8' },
    top_p: { type: 'string', default: '0.95' },
    seed: { type: 'string', default: '1' },
    n: { type: 'string', default: '1' },
    stop: { type: 'string', multiple: true, default: [] },
    dtype: { type: 'string' },
    device: { type: 'string', default: 'auto' },
    help: { type: 'boolean', short: 'h', default: false },
  },
});

/** Streams a single continuation; prints several continuations when all are complete. */
async function printContinuations(engine, requests) {
  if (requests.length > 1 || requests[0].n > 1) {
    const all = await engine.generateBatch(requests);
    for (const [i, texts] of all.entries()) {
      for (const { text, finishReason } of texts) {
        console.log(`${requests[i].prompt}${text} [${finishReason}]\n`);
      }
    }
    return;
  }
  const [request] = requests;
  process.stdout.write(request.prompt);
  for await (const { text } of engine.stream(request)) process.stdout.write(text);
  process.stdout.write('\n');
}

async function main() {
  const [folder, ...prompts] = positionals;
  if (options.help || !folder || prompts.length === 0) {
    console.log(usage);
    process.exitCode = options.help ? 0 : 2;
    return;
  }
  const { dtype, device } = options;
  const engine = await initInference(folder, { device, ...(dtype && { dtype }) });
  const interrupt = new AbortController();
  process.once('SIGINT', () => interrupt.abort());
  const request = {
    maxNewTokens: Number(options.max_new_tokens),
    temperature: Number(options.temperature),
    topP: Number(options.top_p),
    seed: Number(options.seed),
    n: Number(options.n),
    stop: options.stop,
    signal: interrupt.signal,
  };
  try {
    await printContinuations(
      engine,
      prompts.map((prompt) => ({ prompt, ...request })),
    );
  } finally {
    await engine.destroy();
  }
}

main().catch((error) => {
  console.error(error instanceof DsError ? error.message : error);
  process.exitCode = 1;
});
