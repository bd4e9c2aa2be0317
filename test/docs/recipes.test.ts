// Tests the recipes of CONTRIBUTING.md: follows them in a copy of the tree, and checks existing
// code against them.
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { packageRoot } from '../../lib/runtime/package-root.js';

const root = packageRoot();
const read = (file: string): string => readFileSync(join(root, file), 'utf8');

/** A row of a recipe's table. */
interface Step {
  file: string;
  what: string;
}

function recipe(title: string): Step[] {
  const [, section = ''] = read('CONTRIBUTING.md').split(`### ${title}\n`);
  const [own = ''] = section.split('\n### ');
  const rows = own.matchAll(/^\| `([^`]+)` \| (.*) \|$/gm);
  return Array.from(rows, ([, file = '', what = '']) => ({ file, what }));
}

/** Names for the placeholders of a recipe: "<op>" and the like. */
type Names = Readonly<Record<string, string>>;

const filled = (text: string, names: Names): string =>
  text.replace(/<(\w+)>/g, (all, name: string) => names[name] ?? all);

/** The files that a row stands for; a "*" is any name. */
function filesOf(file: string, names: Names): string[] {
  const path = filled(file, names);
  if (!path.includes('*')) return existsSync(join(root, path)) ? [path] : [];
  const [folder = '', ending = ''] = path.split('*');
  const inside = readdirSync(join(root, folder)).filter((name) => name.endsWith(ending));
  return inside.map((name) => folder + name);
}

/** Missing results of `steps` for `names`: a file, or code in it that the row names. */
function omissions(steps: readonly Step[], names: Names): string[] {
  return steps.flatMap(({ file, what }) => {
    const texts = filesOf(file, names).map(read);
    if (texts.length === 0) return [`${filled(file, names)} is missing`];
    const words = Array.from(what.matchAll(/`([^`]*<\w+>[^`]*)`/g), ([, word = '']) => word);
    const expected = words.map((word) => filled(word, names));
    return expected
      .filter((word) => !texts.some((text) => text.includes(word)))
      .map((word) => `${filled(file, names)}: no ${word}`);
  });
}

const opHeaders = readdirSync(join(root, 'csrc/ops'))
  .filter((name) => name.endsWith('.h') && !/generated|_rule\.h$/.test(name))
  .filter((name) => read(`csrc/ops/${name}`).includes('inline void check(const '));

const ops = opHeaders.flatMap((header) => {
  const checked = read(`csrc/ops/${header}`).matchAll(/inline void check\(const (\w+)&/g);
  const family = header.replace('.h', '');
  const kernels = /^adamw(8bit|_halves)$/.test(family) ? 'adamw' : family;
  return Array.from(checked, ([, op = '']) => ({ op, family, kernels }));
});

const optimizers = readdirSync(join(root, 'lib/optim')).flatMap((file) => {
  const [, name] =
    /^export class (\w+)\s+extends StandaloneOptimizer/m.exec(read(`lib/optim/${file}`)) ?? [];
  const types = Array.from(read('lib/config/schema.json').matchAll(/"const": "(\w+)"/g));
  const type = types.find(([, one = '']) => one.toLowerCase() === name?.toLowerCase())?.[1];
  return name ? [{ optimizer: file.replace('.ts', ''), Optimizer: name, Type: type ?? name }] : [];
});

/**
 * A folder of lib/models with a file of its own name is a model; other folders hold shared code.
 */
const pathOf = (model: string): string => `lib/models/${model}/${model}.ts`;

const models = readdirSync(join(root, 'lib/models'), { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && existsSync(join(root, pathOf(entry.name))))
  .map(({ name }) => name);
const isEncoder = (model: string): boolean =>
  readFileSync(join(root, pathOf(model)), 'utf8').includes('extends EncoderModel');
const classIn = (model: string): string => {
  const text = readFileSync(join(root, pathOf(model)), 'utf8');
  return [...text.matchAll(/^export class (\w+) extends/gm)].at(-1)?.[1] ?? model;
};
const decoders = models
  .filter((model) => !isEncoder(model))
  .map((model) => ({ model, Model: classIn(model) }));
const encoders = models.filter(isEncoder).map((encoder) => ({ encoder }));

describe('existing features have the files of their recipe', () => {
  test('the page has recipes', () => {
    expect(ops.length).toBeGreaterThan(40);
    expect(optimizers.map(({ Type }) => Type)).toEqual(expect.arrayContaining(['AdamW', 'SGD']));
    const names = ['gemma3', 'gpt2', 'llama', 'mixtral', 'olmo2', 'phi3', 'qwen3-moe', 'smollm3'];
    expect(models).toEqual(expect.arrayContaining(names));
    expect(encoders.map(({ encoder }) => encoder)).toEqual(
      expect.arrayContaining(['bert', 'deberta-v2', 'modernbert', 'roberta']),
    );
    expect(models.length).toBeGreaterThan(25);
    const sizes = ['An op', 'An optimizer', 'A config key', 'A model', 'An encoder'].map(
      (title) => recipe(title).length,
    );
    expect(sizes).toEqual([5, 5, 1, 5, 5]);
  });

  test.each(ops)('op $op', ({ op, family, kernels }) => {
    expect(omissions(recipe('An op'), { Op: op, family, kernels })).toEqual([]);
  });

  test.each(optimizers)('optimizer $Type', (names) => {
    expect(omissions(recipe('An optimizer'), names)).toEqual([]);
  });

  test.each(decoders)('model $model', (names) => {
    expect(omissions(recipe('A model'), names)).toEqual([]);
  });

  test.each(encoders)('encoder $encoder', (names) => {
    expect(omissions(recipe('An encoder'), names)).toEqual([]);
  });

  test('finds omitted files', () => {
    const lion = { optimizer: 'lion', Optimizer: 'Lion', Type: 'Tiger' };
    expect(omissions(recipe('An optimizer'), lion)).toContain(
      'test/golden/optimizers.json: no Tiger',
    );
    expect(omissions(recipe('An op'), { Op: 'X', family: 'x', kernels: 'x' })).toContain(
      'csrc/ops/x_cpu.cc is missing',
    );
  });
});

describe('the recipes work in a copy of the sources', () => {
  let copy: string;
  beforeEach(() => {
    copy = mkdtempSync(join(tmpdir(), 'ds-recipe-'));
  });
  afterEach(() => rmSync(copy, { recursive: true, force: true }));

  const take = (...paths: string[]): void => {
    for (const path of paths) cpSync(join(root, path), join(copy, path), { recursive: true });
  };
  const run = (command: string, ...args: string[]): string => {
    const { status, stdout, stderr } = spawnSync(command, args, { cwd: copy, encoding: 'utf8' });
    expect(`${status} ${stderr}`).toBe('0 ');
    return stdout;
  };
  const written = (file: string): string => readFileSync(join(copy, file), 'utf8');

  test('an op', () => {
    take('csrc', 'scripts/gen-ops.mjs', 'scripts/generated-files.mjs');
    take('lib/runtime', 'lib/optim', 'lib/profiler');
    const names = { family: 'shift', kernels: 'shift' };
    const [header, oracle] = recipe('An op').map(({ file }) => filled(file, names));
    writeFileSync(
      join(copy, header as string),
      `// Adds a constant.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out = in + by. FLOPs: 1 per element of out.
struct Shift {
  View in;   // [n] f32 contiguous
  View out;  // [n] f32 contiguous
  double by;
};

inline void check(const Shift& op) { require_contiguous("shift", op.out, "out"); }

}  // namespace ds
`,
    );
    writeFileSync(
      join(copy, oracle as string),
      `// Shift on the CPU.
#include "shift.h"

#include "../cpu/map.h"

namespace ds::cpu {

void run(const Shift& op, CpuContext&) {
  for (int64_t i = 0; i < op.out.numel(); ++i)
    op.out.as<float>()[i] = op.in.as<const float>()[i] + static_cast<float>(op.by);
}

}  // namespace ds::cpu
`,
    );
    expect(spawnSync('node', ['scripts/gen-ops.mjs', '--check'], { cwd: copy }).status).toBe(1);
    run('node', 'scripts/gen-ops.mjs');
    run('node', 'scripts/gen-ops.mjs', '--check');
    const kernels = written('lib/runtime/kernels.generated.ts');
    expect(kernels).toMatch(/export function shift\(/);
    expect(kernels).toMatch(/export function shiftOnHost\(/);
    expect(written('lib/profiler/element-flops.generated.ts')).toContain('Shift: { out: 1 }');
    run('g++', '-std=c++20', '-mavx2', '-mfma', '-mf16c', '-fsyntax-only', oracle as string);
  });

  test('a function over an op', () => {
    take('lib/tensor', 'docs/tensors.md', 'scripts');
    symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
    const row = recipe('An op').find(({ file }) => file.startsWith('lib/'));
    writeFileSync(
      join(copy, row?.file.replace('*', 'shift') as string),
      `// Adds a constant.
import { add } from './elementwise.js';
import type { Tensor } from '../tensor.js';

/** Options of shift(). */
export interface ShiftOptions {
  /** What is added. */
  by?: number;
}

export const unseen = (by: number): number => by;

// Operations: arithmetic; methods too.

/** x + by. */
export const shift = (x: Tensor, { by = 1 }: ShiftOptions = {}): Tensor => add(x, unseen(by));

// Operations: none.

export const shiftRows = (x: Tensor): Tensor => add(x, 1);
`,
    );
    run('node', 'scripts/gen-functions.mjs');
    expect(written('lib/tensor/methods.generated.ts')).toContain('  shift: 1,\n');
    const exported = written('lib/tensor/ops/functions.generated.ts');
    expect(exported).toContain("export { shift, type ShiftOptions } from './shift.js';");
    expect(written('docs/tensors.md')).toMatch(/^\| arithmetic \| `add`.*, `shift` \|/m);
  });

  test('a config key', () => {
    take('lib/config/schema.json', 'scripts', 'types', 'docs', 'ds_config.schema.json');
    take('lib/inference/config/schema.json', 'ds_inference_config.schema.json');
    const [{ file } = { file: '' }] = recipe('A config key');
    const schema = JSON.parse(written(file));
    schema.properties.eager_rounding = {
      type: 'boolean',
      default: false,
      description: 'Rounds at once.',
      dsNoEffect: 'everything is rounded at once',
    };
    writeFileSync(join(copy, file), `${JSON.stringify(schema, null, 2)}\n`);
    expect(spawnSync('node', ['scripts/gen-config.mjs', '--check'], { cwd: copy }).status).toBe(1);
    run('node', 'scripts/gen-config.mjs');
    run('node', 'scripts/gen-config.mjs', '--check');
    for (const result of [
      'types/config.generated.d.ts',
      'ds_config.schema.json',
      'docs/configuration.md',
    ]) {
      expect(written(result)).toContain('eager_rounding');
      expect(read('CONTRIBUTING.md')).toContain(`\`${result}\``);
    }
  });
});
