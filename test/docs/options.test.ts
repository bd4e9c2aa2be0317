// Tests that the pages have a row for every declared option: its default, effect and other names.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';

import { SAMPLING, tokenOptions } from '../../lib/inference/sampling-options.js';
import { ENGINE, SERVER } from '../../lib/launch/engine-flags.js';
import { LAUNCH } from '../../lib/launch/launch-options.js';
import { EVAL, EXPORT } from '../../lib/launch/model-options.js';
import { PLAN } from '../../lib/launch/plan-options.js';
import { IO } from '../../lib/launch/tool-options.js';
import { CHAT, CHAT_SAMPLING } from '../../lib/serve/chat-options.js';
import { REQUEST_LIMITS, SERVER_LIMITS } from '../../lib/serve/limits.js';
import { SERVE } from '../../lib/serve/serve-options.js';
import { declareLoadingCalls, LOADING } from '../../lib/trainer/data-options.js';
import { declareEvaluationCalls, EVALUATION } from '../../lib/trainer/evaluation-options.js';
import { declareSampleOptions, MODEL, OPTIMIZATION } from '../../lib/trainer/options.js';
import { LOGGING, REPORTING, SAVING, STOPPING } from '../../lib/trainer/report-options.js';
import { flagRows, optionRows, shortRows, tableRows } from '../support/option-table.js';

const page = (name: string) => readFileSync(join(__dirname, '../../docs', name), 'utf8');
const { train, eval: evaluation, loss, count } = declareSampleOptions();
const { data, metrics } = declareEvaluationCalls();
const { log: _, save: __, earlyStop: ___, ...reporting } = REPORTING;

test.each<[heading: string, rows: string[]]>([
  ['model and data', optionRows({ ...MODEL, train, eval: evaluation })],
  ['training', optionRows({ ...OPTIMIZATION, loss, count })],
  ['evaluation', optionRows({ data, ...EVALUATION, metrics }, 'eval.')],
  ['checkpoints', [...optionRows(SAVING, 'save.'), ...optionRows(STOPPING, 'earlyStop.')]],
  ['logs', [...optionRows(LOGGING, 'log.'), ...optionRows(reporting)]],
  ['field of `data`', optionRows({ ...LOADING, ...declareLoadingCalls() })],
])('docs/trainer.md has the declared options: %s', (heading, rows) => {
  expect(tableRows(page('trainer.md'), heading)).toEqual(rows);
});

test.each([
  ['option', [...flagRows(ENGINE), ...flagRows({ ...SERVE, ...SERVER })]],
  ['limit of a request', flagRows(REQUEST_LIMITS)],
  ['limit of the server', flagRows(SERVER_LIMITS)],
])('docs/serving-options.md has the declared options: %s', (heading, rows) => {
  const localTexts = tableRows(page('serving-options.md'), heading).filter(
    (row) => !row.includes('--no-graphs'),
  );
  expect(localTexts).toEqual(rows);
});

test('docs/chat.md has the declared options', () => {
  const rows = flagRows({ ...CHAT, ...CHAT_SAMPLING });
  expect(tableRows(page('chat.md'), 'option of `ds chat`')).toEqual(rows);
});

test('docs/launcher.md has the declared options', () => {
  const rows = Object.values(LAUNCH).flatMap((declared) => flagRows(declared));
  const localTexts = tableRows(page('launcher.md'), 'option');
  expect(localTexts.filter((row) => !row.includes('--no-bind_cores_to_rank'))).toEqual(rows);
});

test.each([
  ['planning.md', PLAN, 'option'],
  ['evaluation.md', EVAL, 'option'],
  ['checkpoints.md', EXPORT, 'option of `ds export`'],
  ['nvme.md', IO, 'option of `ds io`'],
])('docs/%s has the declared options', (name, groups, heading) => {
  const rows = Object.values(groups).flatMap((declared) => flagRows(declared));
  expect(tableRows(page(name), heading)).toEqual(rows);
});

test('docs/sampling.md has the declared options', () => {
  const rows = shortRows({ ...SAMPLING, ...tokenOptions({ vocabSize: 1 }) });
  expect(tableRows(page('sampling.md'), 'option')).toEqual(rows);
});

/** Options of a file: name, default in the comment, default in the declaration. */
function* defaultsIn(file: string): Generator<[name: string, comment: string, value: string]> {
  const text = readFileSync(join(__dirname, '../../lib', file), 'utf8');
  const pending: ts.Node[] = [ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true)];
  for (let node = pending.pop(); node; node = pending.pop()) {
    ts.forEachChild(node, (child) => void pending.push(child));
    if (!ts.isPropertyAssignment(node) || !ts.isCallExpression(node.initializer)) continue;
    const about = node.initializer.arguments.find(ts.isObjectLiteralExpression);
    const member = about?.properties.find((property) => property.name?.getText() === 'default');
    if (!member || !ts.isPropertyAssignment(member)) continue;
    const comment = ts.getJSDocCommentsAndTags(node)[0]?.getText() ?? '';
    const stated = /Default: (\S+?)[,;.]?(\s|$)/.exec(comment)?.[1] ?? '';
    yield [node.name.getText(), stated, member.initializer.getText().replaceAll("'", '"')];
  }
}

const TRAINER = ['data-options', 'evaluation-options', 'options', 'report-options'];
const FILES = TRAINER.map((name) => `trainer/${name}.ts`);
const MORE = ['inference/sampling-options.ts', 'serve/limits.ts', 'serve/serve-options.ts'];
test.each([...FILES, ...MORE])('comments have the defaults of %s', (file) => {
  const literals = [...defaultsIn(file)].filter(([, , value]) =>
    /^("[^"]*"|[\d.e-]+|true|false)$/.test(value),
  );
  const wrong = literals.filter(([, comment, value]) => comment !== value);
  expect(wrong).toEqual([]);
  expect(literals.length).toBeGreaterThan(1);
});
