#!/usr/bin/env node
// Compares random templates with Python's jinja2: texts and refusals.
// Usage: try-templates.mjs [--minutes 60] [--seed 1] [--kinds] [--python /usr/bin/python3]
// Needs `npm run build:ts` and python3-jinja2. It prints each template that differs, at most 20 a
// batch, and exits 1 if there is one. With --kinds the name of a refusal counts as well.
import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '60' },
    seed: { type: 'string', default: '1' },
    kinds: { type: 'boolean', default: false },
    python: { type: 'string', default: '/usr/bin/python3' },
    templates: { type: 'string', default: join(here, '../dist/text/template/template.js') },
  },
});
const { Template } = createRequire(import.meta.url)(values.templates);
const BATCH = 500;
const SHOWN = 20;
/** The refusal of roots of negative numbers, which Python computes. */
const COMPLEX = 'complex numbers are not supported';

function outcome({ template, given }) {
  try {
    return { text: new Template(template).render(given).text };
  } catch (error) {
    return { error: error.kind ?? error.name, message: error.message };
  }
}

function isSame(expected, found) {
  if (expected.text !== undefined) return expected.text === found.text;
  return found.error !== undefined && (!values.kinds || found.error === expected.error);
}

function batch(seed) {
  const args = [join(here, 'try-templates.py'), String(seed), String(BATCH)];
  const { stdout, status, stderr } = spawnSync(values.python, args, { maxBuffer: 2 ** 30 });
  if (status !== 0) throw new Error(String(stderr));
  return String(stdout)
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line));
}

const counts = { templates: 0, refused: 0, unsupported: 0, different: 0, otherKind: 0 };
const end = Date.now() + Number(values.minutes) * 60_000;
for (let seed = Number(values.seed); Date.now() < end; ++seed) {
  let shown = 0;
  for (const expected of batch(seed)) {
    const found = outcome(expected);
    counts.templates++;
    if (expected.error !== undefined) counts.refused++;
    if (expected.error !== undefined && found.error !== undefined) {
      counts.otherKind += Number(expected.error !== found.error);
    }
    if (isSame(expected, found)) continue;
    if (found.message === COMPLEX) {
      counts.unsupported++;
      continue;
    }
    counts.different++;
    if (shown++ < SHOWN) console.log(JSON.stringify({ seed, ...expected, found }));
  }
}
console.log(JSON.stringify(counts));
process.exitCode = counts.different > 0 ? 1 : 0;
