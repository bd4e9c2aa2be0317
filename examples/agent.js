// Answers a question about the files of a folder with a chat model, which may call two functions.
// Run: node examples/agent.js MODEL 'What is in README.md?'    (--help lists the options)
'use strict';
const { readdirSync, readFileSync, realpathSync } = require('node:fs');
const { resolve, sep } = require('node:path');
const { parseArgs } = require('node:util');
const { DsError, initInference } = require('@ds/native');

const usage = `node examples/agent.js MODEL QUESTION [options]
  MODEL               folder or hub name of a chat model whose template reads tools
  --files FOLDER      the folder that the model may list and read (default: this folder)
  --max_new_tokens N  tokens of an answer at most (default 512)
  --rounds N          answers of the model at most (default 8)
  --context N         tokens of prompt and answer (default: the model's maximum)
  --dtype NAME        fp32, fp16 or bf16 (default: dtype of the files)
  --device NAME       cpu, cuda, cuda:N or auto (default: a GPU if present)`;

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    files: { type: 'string', default: '.' },
    max_new_tokens: { type: 'string', default: '512' },
    rounds: { type: 'string', default: '8' },
    context: { type: 'string' },
    dtype: { type: 'string' },
    device: { type: 'string', default: 'auto' },
    help: { type: 'boolean', short: 'h', default: false },
  },
});

/** Returns the real path of a file in the folder. Throws for paths that lead out of the folder. */
function pathInFolder(path) {
  const root = realpathSync(options.files);
  const full = realpathSync(resolve(root, String(path)));
  if (full === root || full.startsWith(root + sep)) return full;
  throw new Error(`expected a path in the folder, got ${path}`);
}

const path = { type: 'string', description: 'a path in the folder, "." for the folder itself' };
const parameters = {
  type: 'object',
  properties: { path },
  required: ['path'],
  additionalProperties: false,
};

/** The functions that the model may call. The model receives the message of a thrown error. */
const tools = [
  {
    name: 'list_files',
    description: 'Lists the names of a folder.',
    parameters,
    run: (input) => readdirSync(pathInFolder(input.path)),
  },
  {
    name: 'read_file',
    description: 'Returns the first 4,000 characters of a text file.',
    parameters,
    run: (input) => readFileSync(pathInFolder(input.path), 'utf8').slice(0, 4000),
  },
];

/** Prints pieces of the answer as they arrive, and each call. */
function printEvent(event) {
  if (event.type === 'content') process.stdout.write(event.text);
  if (event.type === 'call') console.log(`\n[${event.name} ${event.arguments}]`);
  if (event.type === 'result' && event.isError) console.log(`[${event.content}]`);
}

async function main() {
  const [model, question] = positionals;
  if (options.help || !model || !question) {
    console.log(usage);
    process.exitCode = options.help ? 0 : 2;
    return;
  }
  const { dtype, device, context } = options;
  const config = {
    device,
    ...(context && { max_out_tokens: Number(context) }),
    ...(dtype && { dtype }),
  };
  const engine = await initInference(model, config);
  const interrupt = new AbortController();
  process.once('SIGINT', () => interrupt.abort());
  try {
    const { rounds, finishReason } = await engine.chat({
      messages: [{ role: 'user', content: question }],
      tools,
      maxRounds: Number(options.rounds),
      maxNewTokens: Number(options.max_new_tokens),
      signal: interrupt.signal,
      onEvent: printEvent,
    });
    console.log(`\n[${rounds} answers, ${finishReason}]`);
  } finally {
    await engine.destroy();
  }
}

main().catch((error) => {
  console.error(error instanceof DsError ? error.message : error);
  process.exitCode = 1;
});
