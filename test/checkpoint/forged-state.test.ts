// Tests manifests with a valid digest and changed fields: each is harmless, or throws a typed error
// before any change.
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import {
  type DsConfig,
  data,
  type Engine,
  initialize,
  nn,
  optim,
  seed,
  Tensor,
} from '../../lib/index.js';
import { getRandomState } from '../../lib/tensor/index.js';
import type { JsonObject, JsonValue } from '../../types/json.js';

class Line extends nn.Module {
  readonly inner = new nn.Linear(2, 1);

  forward(x: Tensor): Tensor {
    return this.inner.call(x).square().mean().to('f32');
  }
}

const loader = new data.DataLoader({ length: 5, get: (i) => i }, { seed: 3 });
const schedule = new optim.ReduceLrOnPlateau({ baseLr: 1e-2 });
let dir: string;
let engine: Engine;

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ds-forged-'));
  seed(7);
  const config: DsConfig = {
    train_batch_size: 1,
    optimizer: { type: 'AdamW', params: { lr: 1e-2, weight_decay: 0.1 } },
    fp16: { enabled: true, initial_scale_power: 4 },
  };
  const options = { model: new Line(), config, lrScheduler: schedule, device: 'cpu' as const };
  ({ engine } = await initialize(options));
  engine.companions.set('loader', loader);
  train();
  schedule.observe(1);
  await engine.saveCheckpoint(dir, { tag: 't', clientState: { epoch: 1 } });
  train();
});
afterAll(() => {
  engine.destroy();
  rmSync(dir, { recursive: true, force: true });
});

function train(): void {
  const x = Tensor.from([[1, -2]], { dtype: 'f16' });
  engine.backward(engine.forward<Tensor>(x));
  engine.step();
  engine.synchronize();
  x.dispose();
}

/** The state of the engine that a load changes. */
function stateOf(): JsonObject {
  const { parts, progress, module } = engine;
  const states = parts.stage.partitions.flatMap((partition) =>
    partition.fragments.flatMap((fragment) =>
      ['master', 'exp_avg', 'exp_avg_sq'].map((name) => {
        const tensor = parts.state.lend(partition, fragment, name).tensor;
        const values = tensor.toArray();
        tensor.release();
        return values;
      }),
    ),
  );
  const groups = parts.optimizer.groups.map(({ params: _, ...rest }) => rest);
  return JSON.parse(
    JSON.stringify({
      states,
      groups,
      progress,
      random: getRandomState(),
      weights: [...module.namedParameters()].map(([, p]) => p.toArray()),
      scaler: parts.scaler.state(),
      schedules: parts.schedules.stateDict(),
      loader: loader.stateDict(),
    }),
  );
}

/** Replacements of a field; undefined deletes it. */
const FORGED: readonly (JsonValue | undefined)[] = [
  ...[null, 'x', '', true, [], {}, [1], { x: 1 }, -1, 0.5, 2 ** 60, 1e308, undefined],
];

/** The paths to every value inside `value`, from the outside in. */
function pathsOf(value: JsonValue, path: string[] = []): string[][] {
  const inner = typeof value === 'object' && value !== null ? Object.entries(value) : [];
  return [
    ...(path.length > 0 ? [path] : []),
    ...inner.flatMap(([key, item]) => pathsOf(item as JsonValue, [...path, key])),
  ];
}

function forge(original: JsonObject, path: readonly string[], value?: JsonValue): string {
  const copy = structuredClone(original);
  let at = copy as Record<string, JsonValue>;
  for (const key of path.slice(0, -1)) at = at[key] as Record<string, JsonValue>;
  const last = path.at(-1) as string;
  if (value === undefined) delete at[last];
  else at[last] = value;
  const body = JSON.stringify(copy).slice(0, -1);
  return `${body},\n"sha256":"${createHash('sha256').update(body).digest('hex')}"}\n`;
}

const manifestPath = () => join(dir, 't', 'manifest.json');

function manifest(): JsonObject {
  const { sha256: _, ...value } = JSON.parse(readFileSync(manifestPath(), 'utf8'));
  return value;
}

test('every field of a manifest in turn, with an impossible value', async () => {
  const text = readFileSync(manifestPath(), 'utf8');
  const original = manifest();
  const before = stateOf();
  const counts = { refused: 0, taken: 0 };
  for (const path of pathsOf(original)) {
    for (const value of FORGED) {
      const place = `${path.join('.')} = ${JSON.stringify(value)}`;
      writeFileSync(manifestPath(), forge(original, path, value));
      const error = await engine.loadCheckpoint(dir).then(
        () => null,
        (thrown: unknown) => thrown,
      );
      if (error !== null) {
        counts.refused++;
        expect([place, error]).toEqual([
          place,
          expect.objectContaining({ name: 'DsError', code: 'DS_CHECKPOINT' }),
        ]);
        expect((error as Error).message).toContain(join(dir, 't'));
        expect([place, stateOf()]).toEqual([place, before]);
        continue;
      }
      counts.taken++;
      expect([place, isSound(stateOf())]).toEqual([place, true]);
      train();
      // A rate of 1e18 is valid, so the weights may become huge.
      const isHuge = typeof value === 'number' && value > 1e9;
      if (!isHuge) expect([place, isSound(stateOf())]).toEqual([place, true]);
      writeFileSync(manifestPath(), text);
      await engine.loadCheckpoint(dir);
      train();
      expect([place, stateOf()]).toEqual([place, before]);
    }
  }
  writeFileSync(manifestPath(), text);
  expect(counts.refused).toBeGreaterThan(5 * counts.taken);
});

/** No NaN (null in JSON, except for a metric without a value), and no text. */
function isSound({ schedules: _, ...state }: JsonObject): boolean {
  return !/null|"x"|:""/.test(JSON.stringify(state));
}

test.each<[string[], JsonValue, RegExp]>([
  [['state', 'groups', '0', 'lr'], 'x', /state.groups\[0\].lr: expected a number from 0, got "x"/],
  [['state', 'groups', '0', 'betas'], [0.9, 2], /betas\[1\]: expected a number from 0 to 1, got 2/],
  [['state', 'progress'], null, /state.progress: expected an object, got null/],
  [
    ['state', 'progress', 'appliedSteps'],
    -1,
    /appliedSteps: expected a whole number of at least 0/,
  ],
  [['state', 'scaler', 'scale'], 0, /state.scaler: .*"scale": expected a finite number above 0/],
  [['state', 'schedule', 'schedules'], [{ lr: 'x' }], /state.schedule: .*schedule.lr/],
  [['state', 'clientState'], [], /state.clientState: expected an object, got a list of 0/],
  [['ranks', '0', 'random', 'offset'], 0.5, /ranks\[0\].random.offset: expected a whole number/],
  [['ranks', '0', 'companions', 'loader', 'served'], 'x', /companions.loader: .*got "x"/],
  [['worldSize'], 2, /ranks: expected a list of 2/],
])('%j = %j says so, and names the manifest', async (path, value, message) => {
  const text = readFileSync(manifestPath(), 'utf8');
  writeFileSync(manifestPath(), forge(manifest(), path, value));
  try {
    await expect(engine.loadCheckpoint(dir)).rejects.toEqual(
      expect.objectContaining({
        code: 'DS_CHECKPOINT',
        op: expect.stringContaining(manifestPath()),
        message: expect.stringMatching(message),
      }),
    );
  } finally {
    writeFileSync(manifestPath(), text);
  }
});
