// Tests configurations of any size: work linear in the text, bounds otherwise, and regular files
// only.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseHjson } from '../../lib/config/hjson.js';
import { checkConfig, type DsConfig } from '../../lib/config/index.js';
import { MAX_BYTES, parseConfig } from '../../lib/config/parse.js';
import { closest } from '../../lib/runtime/suggestion.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'ds-size-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(text: string): string {
  const path = join(folder, 'ds_config.json');
  writeFileSync(path, text);
  return path;
}

const many = (count: number, item: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => item(i));

/**
 * Counts the characters that `run` slices or searches backwards; quadratic code would exceed any
 * limit.
 */
function charactersCut(run: () => void): number {
  const { lastIndexOf, slice, split } = String.prototype;
  const { exec } = RegExp.prototype;
  let characters = 0;
  String.prototype.slice = function (...range) {
    const piece = slice.apply(this, range);
    characters += piece.length;
    return piece;
  };
  String.prototype.split = function (...by: [never]) {
    characters += this.length;
    return split.apply(this, by);
  };
  String.prototype.lastIndexOf = function (part, from) {
    const found = lastIndexOf.call(this, part, from);
    characters += (from ?? this.length) - found;
    return found;
  };
  RegExp.prototype.exec = function (text) {
    const found = exec.call(this, text);
    characters += found?.[0].length ?? 0;
    return found;
  };
  try {
    run();
  } finally {
    Object.assign(String.prototype, { lastIndexOf, slice, split });
    RegExp.prototype.exec = exec;
  }
  return characters;
}

test.each<[name: string, text: () => string]>([
  ['numbers on one line', () => `{ "a": [${many(2e4, String).join(', ')}] }`],
  ['words on one line', () => `{ "a": [${many(2e4, () => 'true').join(',')}] }`],
  ['words without quotes', () => `{ "a": [${many(2e4, () => 'word').join('\n')}\n] }`],
  ['strings', () => `{ "a": [${many(2e4, () => '"x\\n"').join(',')}] }`],
  ['three quotes on one line', () => `{ "a": [${many(2e4, () => "'''x'''").join(',')}] }`],
  ['keys', () => `{ ${many(2e4, (i) => `"key${i}": ${i}`).join(',\n')} }`],
])('%s cost work in proportion to their number', (_, make) => {
  const text = make();
  expect(charactersCut(() => parseHjson(text))).toBeLessThan(4 * text.length);
});

test.each<[name: string, text: () => string]>([
  ['a string', () => `{ "a": "${'x'.repeat(8e6)}" }`],
  ['a string of escapes', () => `{ "a": "${'\\n'.repeat(1e6)}" }`],
  ['a string without quotes', () => `{ a: ${'/x'.repeat(1e6)}\n}`],
  ['three quotes around many lines', () => `{ a: '''${'\n x'.repeat(2e5)}''' }`],
  ['line ends', () => `{ ${'\n'.repeat(24e6)} "a": 1 }`],
  ['comments', () => `{ ${'# x\n// y\n/* z */'.repeat(1e5)} "a": 1 }`],
  ['a comment', () => `{ /* ${'*'.repeat(8e6)} */ "a": 1 }`],
])('%s of any length does not take the stack', (_, text) => {
  expect(parseHjson(text())?.kind).toBe('object');
});

test('finds places without parsing the text again', () => {
  const keys = many(2e4, (i) => `key${i}`);
  const text = `{\n${keys.map((key) => `  "${key}": 0`).join(',\n')} }`;
  const document = parseConfig(text, 'x');
  let lines: unknown[] = [];
  const cut = charactersCut(() => {
    lines = keys.map((key) => document.location([key])?.line);
  });
  expect(lines).toEqual(keys.map((_, i) => i + 2));
  expect(document.location(['key7'])).toEqual({ line: 9, column: 3 });
  expect(cut).toBeLessThan(4 * text.length);
});

test('unknown keys are all named, the first with a guess', () => {
  const text = many(20_000, (i) => `"stagee_${i}": ${i}`).join(',\n');
  const source = file(`{ "train_batch_size": 1, "zero_optimization": { "stagee": 1 },\n${text} }`);
  const { notices, config } = checkConfig(source, { worldSize: 1 });
  expect(config).not.toBeNull();
  expect(notices).toHaveLength(20_001);
  const [named] = checkConfig({ zero_optimization: { stagee: 1 } } as DsConfig, {
    worldSize: 1,
  }).notices;
  expect(named?.text).toMatch(/Did you mean "stage"/);
});

test('a long word resembles nothing', () => {
  expect(closest('x'.repeat(1e6), ['stage', 'x'.repeat(30)])).toBe('');
  expect(closest('_stage'.repeat(1e5), ['stage'])).toBe('');
});

test('messages are of bounded length', () => {
  const texts = [
    `{ "train_batch_size": "${'x'.repeat(1e6)}" }`,
    `{ "train_batch_size": [${many(1e5, String).join(',')}] }`,
    `{ "train_batch_size": 1, "optimizer": { "type": "Adam", "params": { "betas": [${'"x",'.repeat(1e5)}] } } }`,
    `{ ${many(1e4, () => '"seed": 1').join(',')} }`,
    `{ ${'x'.repeat(1e6)} }`,
  ];
  for (const text of texts) {
    const { errors } = checkConfig(file(text), { worldSize: 1 });
    expect(errors.length).toBeGreaterThan(0);
    expect(errors.length).toBeLessThanOrEqual(100);
    for (const { message } of errors) expect(message.length).toBeLessThan(3000);
  }
});

test('counts the duplicate keys of the whole file', () => {
  const { errors } = checkConfig(file(`{ ${many(1e4, () => '"seed": 1').join(',')} }`), {
    worldSize: 1,
  });
  expect(errors[0]?.got).toMatch(/^duplicate keys: "seed" at 1:13 .*, 9979 more$/);
});

test.each<[name: string, value: () => unknown]>([
  ['a list without bound', () => new Array(2 ** 32 - 1)],
  ['parts that repeat', () => repeatNested(90)],
])('an object with %s is refused', (_, value) => {
  const config = { train_batch_size: 4, seed: value() } as unknown as DsConfig;
  const { errors } = checkConfig(config, { worldSize: 1 });
  expect(errors.map(({ expected }) => expected)).toEqual(['at most 100000 values']);
});

test('an array of numbers in memory is no section', () => {
  const config = { train_batch_size: 4, seed: new Float64Array(9) } as unknown as DsConfig;
  const { errors } = checkConfig(config, { worldSize: 1 });
  expect(errors.map(({ path, got }) => [path, got])).toEqual([['seed', 'a Float64Array']]);
});

test.each<[name: string, path: () => string, got: RegExp]>([
  ['a folder', () => folder, /a folder/],
  ['a pipe nobody writes to', pipe, /a pipe/],
  ['a device without end', () => '/dev/zero', /a device/],
  ['an empty device', () => '/dev/null', /a device/],
  ['a file beyond the bound', () => file(' '.repeat(MAX_BYTES + 1)), /1048577 bytes/],
])('%s is no configuration', (_, path, got) => {
  const { errors } = checkConfig(path(), { worldSize: 1 });
  expect(errors).toHaveLength(1);
  expect(errors[0]).toMatchObject({ code: 'DS_CONFIG', got: expect.stringMatching(got) });
});

test.each([1, 8])('base64 of %d times the limit is refused', (times) => {
  const text = `{ "train_batch_size": 1 ${' '.repeat(times * MAX_BYTES)} }`;
  const { errors } = checkConfig(Buffer.from(text).toString('base64'), { worldSize: 1 });
  expect(errors[0]?.expected).toBe(`at most ${MAX_BYTES} characters`);
});

function pipe(): string {
  const path = join(folder, 'pipe');
  execFileSync('mkfifo', [path]);
  return path;
}

/** `depth` nested objects; each refers to the next one twice. */
function repeatNested(depth: number): unknown {
  let value: unknown = 1;
  for (let i = 0; i < depth; ++i) value = { left: value, right: value };
  return value;
}
