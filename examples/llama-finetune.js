// Fine-tunes a Llama on conversations with a Trainer.
// Run: node examples/llama-finetune.js    (--help lists the options)
'use strict';
const { mkdirSync, mkdtempSync, rmSync, writeFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { parseArgs } = require('node:util');
const { nn, peft, seed, text, Trainer } = require('@ds/native');

const usage = `node examples/llama-finetune.js [options]
  --model DIR        Hugging Face folder (default: a new tiny Llama)
  --data FILE.jsonl  rows { messages } (default: six questions)
  --output DIR       folder for the model, or with --lora for the adapter
  --steps N          optimizer steps (default 120)
  --lora             train an adapter, not the model
  --device NAME      cpu, cuda, cuda:N or auto (default: a GPU if present)`;

const string = { type: 'string' };
const { values: options } = parseArgs({
  options: {
    model: string,
    data: string,
    output: string,
    device: string,
    steps: { type: 'string', default: '120' },
    lora: { type: 'boolean' },
    help: { type: 'boolean', short: 'h' },
    local_rank: string,
  },
});

/** Training data of the tiny model: questions and answers. */
const FACTS = [
  ['Which stage shards gradients?', 'Stage 2 shards gradients.'],
  ['Which stage shards parameters?', 'Stage 3 shards parameters.'],
  ['Where does the optimizer go under offload?', 'Its state lives in pinned host memory.'],
  ['What holds a checkpoint?', 'A folder of safetensors.'],
  ['Who starts the ranks?', 'The launcher starts one process for each GPU.'],
  ['What is a unit?', 'The parameters of a block in one flat buffer.'],
];

/** Writes rows { messages } with each question in two phrasings. Returns the path. */
function makeData() {
  const phrasings = [(question) => question, (question) => `Please say: ${question}`];
  const rows = phrasings.flatMap((phrase) =>
    FACTS.map(([question, answer]) => ({
      messages: [
        { role: 'user', content: phrase(question) },
        { role: 'assistant', content: answer },
      ],
    })),
  );
  const folder = mkdtempSync(join(tmpdir(), 'chat-'));
  process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
  const path = join(folder, 'chat.jsonl');
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return path;
}

/** Returns a Llama that is small enough to memorize the answers. */
function makeModel(tokenizer) {
  const { vocabSize } = tokenizer;
  const sizes = { layers: 2, heads: 4, kvHeads: 2, channels: 64, hidden: 128, maxSeq: 256 };
  // Large initial weights: with --lora they are frozen, and they must distinguish tokens.
  return new nn.models.Llama({ vocabSize, ...sizes, tied: true, initializerRange: 0.1 });
}

/** Returns the model's answer by greedy decoding. */
function answer(model, tokenizer, question) {
  const chat = [{ role: 'user', content: question }];
  const { ids } = tokenizer.applyChatTemplate(chat, { addGenerationPrompt: true });
  const output = model.generate([...ids], { maxNewTokens: 24, temperature: 0 });
  const answerIds = output.slice(ids.length);
  const end = answerIds.indexOf(tokenizer.eosId);
  return tokenizer.decode(end < 0 ? answerIds : answerIds.slice(0, end), {
    skipSpecialTokens: true,
  });
}

async function main() {
  if (options.help) return console.log(usage);
  seed(1);
  const tokenizer = text.Tokenizer.fromPretrained(options.model ?? join(__dirname, 'tokenizer'));
  const model = options.model
    ? await nn.models.fromPretrained(options.model)
    : makeModel(tokenizer);
  if (options.lora) peft.addLora(model, { r: 16, loraAlpha: 32, targetModules: 'all-linear' });
  const files = options.data ?? makeData();
  const length = Math.min(model.maxSeq, 1024);
  const train = await text.TextDataset.open({ files, tokenizer, length, loss: 'assistant' });
  const [question] = FACTS[1];
  console.log(`before: ${question} -> ${answer(model, tokenizer, question)}`);

  const trainer = new Trainer({
    model,
    tokenizer,
    train,
    device: options.device,
    maxSteps: Number(options.steps),
    batchSize: 2,
    lr: options.lora ? 1e-2 : 3e-3,
    schedule: 'cosine',
    warmup: 0.05,
    weightDecay: 0.01,
    deepspeed: { optimizer: { type: 'AdamW', params: { lr: 'auto', weight_decay: 'auto' } } },
    log: { every: 20 },
  });
  const losses = [];
  trainer.on('log', ({ loss }) => losses.push(loss));
  await trainer.train();
  if (options.output) {
    mkdirSync(options.output, { recursive: true });
    if (options.lora) await peft.saveAdapter(model, options.output);
    else await trainer.save(options.output);
    console.log(`saved ${options.output}`);
  }
  await trainer.destroy();

  console.log(`loss ${losses[0].toFixed(3)} -> ${losses.at(-1).toFixed(3)}`);
  console.log(`after: ${question} -> ${answer(model, tokenizer, question)}`);
}

main();
