// `ds merge` and `ds export` as users run them.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nn, peft } from '../../lib/index.js';
import { stir, tinyLlama } from '../peft/models.js';
import { DS } from './jobs.js';

const dir = mkdtempSync(join(tmpdir(), 'ds-merge-'));
const at = (name: string): string => join(dir, name);
beforeAll(async () => {
  await tinyLlama().save(at('base'));
  const model = peft.addLora(await nn.models.fromPretrained(at('base')), { r: 2 });
  stir(model);
  await peft.saveAdapter(model, at('adapter'));
});
afterAll(() => rmSync(dir, { recursive: true }));

const ds = (...words: string[]) =>
  spawnSync(process.execPath, [...DS, ...words], { encoding: 'utf8', cwd: dir });

test('ds merge writes a model, and ds export converts its dtype', async () => {
  const merged = ds('merge', 'base', 'adapter', '--output', 'merged');
  expect([merged.status, merged.stderr]).toEqual([0, '']);
  expect(merged.stdout).toBe(
    ['base with adapter:', '  merged/config.json', '  merged/model.safetensors\n'].join('\n'),
  );
  const exported = ds('export', 'merged', '--output', 'half', '--dtype', 'fp16');
  expect([exported.status, exported.stderr]).toEqual([0, '']);
  expect(exported.stdout).toMatch(/half: \S+ \S+ of weights from merged, Hugging Face's layout$/m);
  const [full, half] = await Promise.all(
    ['merged', 'half'].map((name) => nn.models.fromPretrained(at(name))),
  );
  const first = (model?: nn.models.CausalLM) => model?.parameters()[0];
  expect(first(half)?.toArray()).toEqual(first(full)?.to('f16').toArray());
});

test.each<[words: string, message: RegExp]>([
  ['merge base adapter', /^error: required option '--output <folder>'/],
  ['merge base adapter --output base', /^ds: .*base: expected a folder that does not exist yet/],
  ['merge base base --output other', /^ds: .*adapter_config\.json/],
  ['export adapter --output other', /^ds: export adapter: expected whole weights, got an adapter/],
  ['export none --output other', /^ds: /],
])('the error of an invalid command has one line: ds %s', (words, message) => {
  const { status, stdout, stderr } = ds(...words.split(' '));
  expect([status, stdout, stderr.trim().split('\n').length]).toEqual([2, '', 1]);
  expect(stderr).toMatch(message);
  expect(existsSync(at('other'))).toBe(false);
});
