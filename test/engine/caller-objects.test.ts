// Tests the checks of monitors, optimizers and jobs that a caller passes to initialize().
import { Mesh } from '../../lib/comm/mesh.js';
import { type MeshOptions, MeshShape } from '../../lib/comm/mesh-shape.js';
import { resolveConfig } from '../../lib/config/index.js';
import {
  callFactory,
  requireJob,
  requireMethods,
  requireMonitors,
} from '../../lib/engine/setup/clients.js';
import { findOptimizer } from '../../lib/engine/setup/optimizer.js';
import { type DsConfig, nn, optim } from '../../lib/index.js';
import { thrownBy } from '../support/refusal.js';

const configOf = (more: DsConfig = {}, worldSize = 1) =>
  resolveConfig({ train_micro_batch_size_per_gpu: 1, ...more }, { worldSize });

const jobOf = (ranks: number, mesh: MeshOptions = {}) =>
  ({
    rank: 0,
    worldSize: ranks,
    world: { rank: 0, size: ranks },
    mesh: new Mesh(MeshShape.over(ranks, mesh), { rank: 0, size: ranks } as never, null as never),
  }) as never;

const linear = () => new nn.Linear(16, 32);
const adam = (params = linear().parameters()) => new optim.AdamW(params, { lr: 0.1 });

describe('objects of the caller', () => {
  const monitor = { write() {}, flush() {}, close() {} };

  test('monitors have three methods', () => {
    requireMonitors(undefined);
    requireMonitors([]);
    requireMonitors([monitor, Object.create(monitor)]);
    expect(thrownBy(() => requireMonitors(monitor))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'initialize monitors',
      expected: 'a list of monitors',
    });
    for (const one of [{ ...monitor, flush: 3 }, null, 5, { write() {}, close() {} }]) {
      expect(thrownBy(() => requireMonitors([monitor, one]))).toMatchObject({
        expected: 'a monitor, with write(), flush(), close()',
      });
    }
    const hint = thrownBy(() => requireMethods('op', {}, 'a thing', ['run'], 'Do it.')).hint;
    expect(hint).toBe('Do it.');
  });

  test('may be created by a function, not by a class', () => {
    class Own {}
    expect(callFactory('op', (given: number) => given + 1, 2)).toBe(3);
    const classy = (given: number) => ({ class: given }).class;
    expect(callFactory('op', classy, 4)).toBe(4);
    expect(thrownBy(() => callFactory('op', Own as never, 2))).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'op',
      got: 'the class Own',
      hint: 'Pass new Own(..), or (given) => new Own(given, ..).',
    });
  });

  test('a job has a rank and a number of ranks', () => {
    for (const job of [undefined, null, { rank: 0, worldSize: 1 }]) requireJob(job);
    for (const job of [5, {}, { rank: 0 }, { worldSize: 1 }, { rank: 0.5, worldSize: 1 }]) {
      expect(thrownBy(() => requireJob(job)).op).toBe('initialize distributed');
    }
  });

  const clientsOf = (clients: object, more: DsConfig = {}, module: nn.Module = linear()) => {
    const given = { module, config: configOf(more), job: jobOf(1), clients };
    return findOptimizer(given as never, null);
  };
  const adamw = { optimizer: { type: 'AdamW', params: { lr: 0.3 } } } as DsConfig;

  test('an optimizer of the caller precedes that of the configuration; stage 3 may have none', () => {
    const own = adam();
    expect(clientsOf({ optimizer: own }, adamw)).toBe(own);
    expect(clientsOf({ optimizer: () => own }, adamw)).toBe(own);
    const module = linear();
    module.parameters()[0]?.requireGrad(false);
    const made = clientsOf({}, adamw, module);
    expect(made.groups.map(({ lr, params }) => [lr, params])).toEqual([
      [0.3, module.parameters().slice(1)],
    ]);
    const [weight] = linear().parameters() as [nn.Parameter];
    expect(clientsOf({ modelParameters: [weight] }, adamw).groups[0]?.params).toEqual([weight]);
    const third = { zero_optimization: { stage: 3 } } as DsConfig;
    expect(clientsOf({}, third)).toMatchObject({ name: 'no optimizer', groups: [] });
    expect(clientsOf({}, { ...third, ...adamw }).name).toBe('AdamW');
    for (const clients of [{}, { modelParameters: [weight] }]) {
      const stage = 'modelParameters' in clients ? third : {};
      expect(thrownBy(() => clientsOf(clients, stage))).toMatchObject({
        code: 'DS_CONFIG',
        op: 'optimizer',
        got: 'none',
      });
    }
  });

  test('an optimizer that exchanges moments has no stage', () => {
    const groups = [{ params: linear().parameters() }];
    const own = { name: 'Own', groups, declareState: () => ({}), update() {}, passOf() {} };
    expect(clientsOf({ optimizer: own })).toBe(own);
    const sharded = { zero_optimization: { stage: 1 } } as DsConfig;
    expect(thrownBy(() => clientsOf({ optimizer: own }, sharded))).toMatchObject({
      code: 'DS_CONFIG',
      op: 'zero_optimization.stage',
    });
  });

  test('an optimizer has groups, methods, and no steps of its own', () => {
    const methods = { name: 'Own', declareState: () => ({}), update() {} };
    for (const groups of [undefined, [], [{}], [{ params: 3 }], [null]]) {
      expect(thrownBy(() => clientsOf({ optimizer: { ...methods, groups } }))).toMatchObject({
        code: 'DS_ARGUMENT',
        op: 'initialize optimizer',
        expected: 'an optimizer with groups: a list of at least one { params, .. }',
      });
    }
    expect(thrownBy(() => clientsOf({ optimizer: { groups: [] } })).expected).toBe(
      'an optimizer, with declareState(), update()',
    );
    expect(thrownBy(() => clientsOf({ optimizer: optim.AdamW as never })).got).toBe(
      'the class AdamW',
    );
    const frozen = linear();
    for (const one of frozen.parameters()) one.requireGrad(false);
    expect(thrownBy(() => clientsOf({}, adamw, frozen))).toMatchObject({
      op: 'initialize',
      got: 'a model with 2 frozen parameters',
      hint: expect.stringContaining('requireGrad(true)'),
    });
    class Empty extends nn.Module {
      forward(): void {}
    }
    expect(thrownBy(() => clientsOf({}, adamw, new Empty()))).toMatchObject({
      got: 'a model without parameters',
      hint: '',
    });
  });
});
