#!/usr/bin/env node
// Compares random tokenizers with the Rust crate tokenizers: ids and decoded texts.
// Usage: try-tokenizers.mjs --oracle FOLDER [--minutes 60] [--seed 1] [--cases N] [--record FILE]
// FOLDER has node_modules/tokenizers (npm install tokenizers@0.23.2 --prefix FOLDER).
// Needs `npm run build:ts`. It prints at most 20 differences and exits 1 if there is one. --record
// writes the crate's results of the cases that are equal, a line for each tokenizer.
import { spawn } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import generator from './try-tokenizers/generator.cjs';

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({
  options: {
    oracle: { type: 'string' },
    minutes: { type: 'string', default: '60' },
    seed: { type: 'string', default: '1' },
    cases: { type: 'string', default: 'Infinity' },
    record: { type: 'string' },
    until: { type: 'string', default: '0' },
    child: { type: 'boolean', default: false },
    core: { type: 'string', default: join(here, '../dist/text/tokenizers/core.js') },
  },
});
if (values.oracle === undefined) throw new Error('expected --oracle FOLDER');
const oracle = createRequire(join(resolve(values.oracle), 'index.js'))('tokenizers');
const { CoreTokenizer } = createRequire(import.meta.url)(values.core);
const SHOWN = 20;
/** Address space of a child, and the time of one tokenizer: the crate may exceed both. */
const MAX_KIB = 6_000_000;
const MAX_MS = 20_000;

/** The value of `body`, or its error. */
function attempt(body) {
  try {
    return { value: body() };
  } catch (error) {
    return { error: String(error.message ?? error).slice(0, 300) };
  }
}

async function attemptLate(body) {
  try {
    return { value: await body() };
  } catch (error) {
    return { error: String(error.message ?? error).slice(0, 300) };
  }
}

const isSame = (a, b) =>
  a.error !== undefined
    ? b.error !== undefined
    : JSON.stringify(a.value) === JSON.stringify(b.value);

const counts = {
  tokenizers: 0,
  texts: 0,
  refused: 0,
  accepted: 0,
  unsupported: 0,
  different: 0,
  ambiguous: 0,
  doubled: 0,
};

function show(difference) {
  counts.different++;
  process.send({ difference });
}

/** Patterns of the generator that match nothing at the start of a text. */
const EMPTY = ['', 'b?', '(?=b)', '\\b'];

/** What such a Replace puts before a text, later steps of the crate put there twice. */
function isDoubled({ type, normalizers, pattern, content }) {
  if (type === 'Sequence') return normalizers.some(isDoubled);
  return type === 'Replace' && content !== '' && EMPTY.includes(pattern.String ?? pattern.Regex);
}

async function compare(seed) {
  const { tokenizer, texts } = generator.randomTokenizer(seed);
  counts.tokenizers++;
  if (tokenizer.normalizer && isDoubled(tokenizer.normalizer)) {
    counts.doubled++;
    return;
  }
  const theirs = attempt(() => oracle.Tokenizer.fromString(JSON.stringify(tokenizer)));
  const ours = attempt(() => new CoreTokenizer('tokenizer.json', tokenizer));
  if (theirs.error !== undefined) {
    counts[ours.error === undefined ? 'accepted' : 'refused']++;
    return;
  }
  if (ours.error !== undefined) {
    counts.unsupported++;
    show({ seed, error: ours.error });
    return;
  }
  const added = [...ours.value.added.values()];
  // Of two tokens with one spelling, the crate finds a random one.
  const spellings = added.map(({ id }) => theirs.value.idToToken(id));
  if (new Set(spellings).size < spellings.length) {
    counts.ambiguous++;
    return;
  }
  const special = new Set(added.filter((one) => one.special).map(({ id }) => id));
  // The crate does not skip special tokens that its normalizer changes.
  const skipping = added.some((one) => one.special && one.normalized) ? [false] : [false, true];
  const { prefix, suffix } = ours.value.bounds;
  const results = [];
  for (const text of texts) {
    counts.texts++;
    const expected = await attemptLate(async () => {
      const bare = await theirs.value.encode(text, null, { addSpecialTokens: false });
      const whole = await theirs.value.encode(text);
      return [bare.getIds(), whole.getIds()];
    });
    const found = attempt(() => {
      const ids = ours.value.encode(text);
      return [ids, [...prefix, ...ids, ...suffix]];
    });
    if (!isSame(expected, found)) {
      show({ seed, text, expected, found, ...parts(tokenizer) });
      return;
    }
    if (expected.error !== undefined) {
      results.push(null);
      continue;
    }
    const ids = expected.value[1];
    const result = [...expected.value];
    for (const skips of skipping) {
      const decoded = await attemptLate(() => theirs.value.decode(ids, skips));
      const own = attempt(() =>
        ours.value.decode(skips ? ids.filter((id) => !special.has(id)) : ids),
      );
      result.push(decoded.value ?? null);
      if (isSame(decoded, own)) continue;
      show({
        seed,
        text,
        ids,
        skips,
        decoded,
        own,
        decoder: tokenizer.decoder,
        added: tokenizer.added_tokens,
      });
      return;
    }
    results.push(result);
  }
  if (values.record) process.send({ record: { seed, results } });
}

const parts = ({ normalizer, pre_tokenizer: cut, added_tokens: added, model }) => {
  const { vocab, merges, ...rest } = model;
  return { normalizer, cut, added, model: rest, vocab, merges };
};

/** Compares seeds from `first` on, and reports each one. */
async function work(first) {
  for (let i = 0; i < Number(values.cases) && Date.now() < Number(values.until); ++i) {
    process.send({ seed: first + i });
    await compare(first + i);
    process.send({ counts });
  }
}

/** The crate aborts its process for some texts, so it runs in a child that is started again. */
async function supervise() {
  const total = {};
  const until = Date.now() + Number(values.minutes) * 60_000;
  let next = Number(values.seed);
  const last = next + Number(values.cases);
  let shown = 0;
  while (next < last && Date.now() < until) {
    let found = {};
    const options = [
      '--seed',
      String(next),
      '--cases',
      String(last - next),
      '--until',
      String(until),
    ];
    const fixed = ['--child', '--oracle', values.oracle, '--core', values.core];
    if (values.record) fixed.push('--record', values.record);
    const command = [process.execPath, fileURLToPath(import.meta.url), ...fixed, ...options];
    const child = spawn('bash', ['-c', `ulimit -v ${MAX_KIB}; exec "$@"`, 'bash', ...command], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    let timer = setTimeout(() => child.kill('SIGKILL'), MAX_MS);
    child.on('message', ({ seed, difference, record, counts: own }) => {
      clearTimeout(timer);
      timer = setTimeout(() => child.kill('SIGKILL'), MAX_MS);
      if (seed !== undefined) next = seed + 1;
      if (own) found = own;
      if (record) appendFileSync(values.record, `${JSON.stringify(record)}\n`);
      if (difference && shown++ < SHOWN) console.log(JSON.stringify(difference));
    });
    const { code, signal } = await new Promise((resolved) =>
      child.on('close', (status, by) => resolved({ code: status, signal: by })),
    );
    clearTimeout(timer);
    for (const [key, count] of Object.entries(found)) total[key] = (total[key] ?? 0) + count;
    if (code === 0) break;
    // The crate panics, or exceeds its time or its memory. An exception would be a fault of ours.
    const ending = signal === null ? 'failed' : 'crashed';
    total[ending] = (total[ending] ?? 0) + 1;
  }
  console.log(JSON.stringify(total));
  process.exitCode = total.different > 0 || total.failed > 0 ? 1 : 0;
}

await (values.child ? work(Number(values.seed)) : supervise());
if (values.child) process.disconnect();
