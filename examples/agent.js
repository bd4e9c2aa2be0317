// Answers a question about the files of a folder: the model calls two functions of this program.
// node examples/agent.js MODEL QUESTION --help
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
  --context N         tokens of prompt and answer (default 1024, or the model's maximum)
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

/** The path of a file in the folder. Throws for a path outside of it, also through a link. */
function inside(path) {
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

/** The functions that the model may call. A thrown error is its result. */
const tools = [
  {
    name: 'list_files',
    description: 'Lists the names of a folder.',
    parameters,
    run: (input) => readdirSync(inside(input.path)),
  },
  {
    name: 'read_file',
    description: 'Returns the first 4,000 characters of a text file.',
    parameters,
    run: (input) => readFileSync(inside(input.path), 'utf8').slice(0, 4000),
  },
];

/** Prints texts as they come, and each call. */
function print(event) {
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
  const room = context && { max_out_tokens: Number(context) };
  const config = { device, ...room, ...(dtype && { dtype }) };
  const engine = await initInference(model, config);
  const stopped = new AbortController();
  process.once('SIGINT', () => stopped.abort());
  try {
    const { rounds, finishReason } = await engine.chat({
      messages: [{ role: 'user', content: question }],
      tools,
      maxRounds: Number(options.rounds),
      maxNewTokens: Number(options.max_new_tokens),
      signal: stopped.signal,
      onEvent: print,
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
