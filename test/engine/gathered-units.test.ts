// Tests the weights on the device during forward and backward, with weights in host memory (stage
// 3). Tests the refusals and writes of GatheredParameters.
import { type DsConfig, type Engine, initialize, nn, Tensor, zero } from '../../lib/index.js';
import type { Parameter } from '../../lib/nn/index.js';
import { cpu } from '../../lib/runtime/device.js';
import { beforeBackward, noGrad, scope } from '../../lib/tensor/index.js';
import { refusal, thrownBy } from '../support/refusal.js';

class Block extends nn.Module {
  readonly fc: nn.Linear;

  constructor(dim: number) {
    super();
    this.fc = new nn.Linear(dim, dim, { bias: false });
  }

  forward(x: Tensor): Tensor {
    return this.fc.call(x);
  }
}

/** Two units, a layer of the root, and a head with the weight of the last unit. */
class Net extends nn.Module {
  readonly inner = new nn.Linear(4, 4, { bias: false });
  readonly blocks = [new Block(4), new Block(4)];
  readonly head = new nn.Linear(4, 4, { bias: false });

  constructor(isTied = false) {
    super();
    const { head, blocks } = this;
    if (isTied) (head as { weight: Parameter }).weight = (blocks[1] as Block).fc.weight;
  }

  forward(x: Tensor): Tensor {
    let y = this.inner.call(x);
    for (const block of this.blocks) y = block.call(y);
    return this.head.call(y).square().mean();
  }
}

const open: Engine[] = [];
afterEach(() => {
  for (const engine of open.splice(0)) engine.destroy();
});

async function engineOf(model: nn.Module): Promise<Engine> {
  const { engine } = await initialize({
    model,
    config: {
      train_micro_batch_size_per_gpu: 2,
      optimizer: { type: 'SGD', params: { lr: 0.5 } },
      zero_optimization: {
        stage: 3,
        offload_param: { device: 'cpu' },
        stage3_param_persistence_threshold: 0,
        stage3_max_reuse_distance: 0,
      },
    } as DsConfig,
    device: cpu(),
  });
  open.push(engine);
  return engine;
}

const input = (): Tensor => Tensor.from([1, 2, 3, 4, 5, 6, 7, 8], { shape: [2, 4] });

/** The names of the units with weights on the device. */
function present({ parts: { stage } }: Engine): string[] {
  const units = [...stage.partitions, ...stage.frozen].map(({ unit }) => unit);
  return units.filter(({ memory }) => memory !== null).map(({ name }) => name.split(' ')[0] ?? '');
}

/** The units on the device when forward and backward reach each block. */
function followUnits(engine: Engine): string[] {
  const seen: string[] = [];
  const look = (at: string): void => void seen.push(`${at}: ${present(engine).join(' ')}`);
  const inner = { name: 'inner', module: (engine.module as Net).inner };
  const removers = [inner, ...engine.module.units()].map(({ name, module }) =>
    module.registerForwardHook((_module, _inputs, output) => {
      look(`forward ${name}`);
      beforeBackward(output as Tensor, () => look(`backward ${name}`));
    }),
  );
  scope(() => {
    const loss = engine.forward<Tensor>(input());
    look('loss');
    engine.backward(loss);
  });
  look('end');
  engine.step();
  for (const remove of removers) remove();
  return seen;
}

test.each<[string, (net: Net) => void]>([
  ['trained units', () => {}],
  ['a frozen unit', (net) => void net.blocks[1]?.requiresGrad_(false)],
  // Backward does not reach the input of the frozen layer, so the end of backward releases it.
  ['a frozen layer of the root', (net) => void net.inner.requiresGrad_(false)],
])('%s are on the device while they are used', async (_, change) => {
  const net = new Net();
  change(net);
  const engine = await engineOf(net);
  const seen = followUnits(engine);
  expect(seen.filter((line) => /^(loss|end)/.test(line))).toEqual(['loss: ', 'end: ']);
  const at = (label: string) => seen.find((line) => line.startsWith(label))?.split(': ')[1] ?? '';
  // The hook of the test runs after that of the engine, which has released the unit.
  expect(at('forward blocks.0')).not.toContain('blocks.1');
  expect(at('backward blocks.1')).toContain('blocks.1');
  expect(at('backward blocks.0')).toContain('blocks.0');
  expect(at('backward inner')).not.toContain('blocks.1');
  // A second step finds the same; it may keep the unit that is read last and first.
  const plain = (lines: string[]) => lines.map((line) => line.replace(/root ?/, '').trim());
  expect(plain(followUnits(engine))).toEqual(plain(seen));
});

test('a layer that shares the weight of a unit gathers it, and a layer of the root its own', async () => {
  const net = new Net(true);
  const engine = await engineOf(net);
  const alone = (layer: nn.Linear): number[] =>
    noGrad(() => scope(() => layer.call(input()).toArray() as number[]));
  const whole = (parameter: Parameter): number[] =>
    engine.withFullWeights(() => noGrad(() => scope(() => parameter.to('f32').toArray()))) as never;
  const product = (weight: number[]): number[] =>
    [0, 1].flatMap((row) =>
      [0, 1, 2, 3].map((out) =>
        [0, 1, 2, 3].reduce((sum, i) => sum + (row * 4 + i + 1) * (weight[out * 4 + i] ?? 0), 0),
      ),
    );
  for (const layer of [net.head, net.inner]) {
    expect(present(engine)).toEqual([]);
    const found = alone(layer);
    expect(present(engine)).toEqual([]);
    for (const [i, value] of product(whole(layer.weight)).entries()) {
      expect(found[i]).toBeCloseTo(value, 4);
    }
  }
});

test('a forward that throws leaves its units until the next forward, which releases them', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  const [block] = net.blocks as [Block];
  const remove = block.fc.registerForwardPreHook(() => {
    throw new Error('a layer of mine');
  });
  const x = input();
  expect(() => engine.forward(x)).toThrow('a layer of mine');
  expect(present(engine)).toContain('blocks.0');
  remove();
  const loss = engine.forward<Tensor>(x);
  expect(present(engine)).toEqual([]);
  engine.backward(loss);
  engine.step();
  expect(present(engine)).toEqual([]);
  x.dispose();
});

test('the norm is that of all gradients', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  scope(() => engine.backward(engine.forward<Tensor>(input())));
  const squares = net.parameters().map((parameter) => {
    const grad = zero.safeGetFullGrad(parameter) as Tensor;
    const sum = noGrad(() => scope(() => grad.square().sum().item() as number));
    grad.dispose();
    return sum;
  });
  expect(squares).toHaveLength(4);
  engine.step();
  const norm = Math.sqrt(squares.reduce((a, b) => a + b, 0));
  expect((engine.getGlobalGradNorm() as number) / norm).toBeCloseTo(1, 5);
});

test('after the engine, the model has whole weights and no hooks, and loses offloaded weights', async () => {
  const net = new Net();
  const { engine } = await initialize({
    model: net,
    config: { train_batch_size: 2, optimizer: { type: 'SGD', params: {} } },
    device: cpu(),
  });
  const acquired = jest.spyOn(engine.parts.stage, 'acquire');
  noGrad(() => scope(() => void engine.forward(input())));
  expect(acquired).toHaveBeenCalled();
  const awaited = jest.spyOn(engine.parts.state, 'awaitWeights');
  for (const module of [net, net.inner]) {
    awaited.mockClear();
    module.stateDict();
    expect(awaited).toHaveBeenCalled();
  }
  engine.destroy();
  awaited.mockClear();
  net.stateDict();
  expect(awaited).not.toHaveBeenCalled();
  acquired.mockClear();
  noGrad(() => scope(() => void net.call(input())));
  expect(acquired).not.toHaveBeenCalled();
  const other = new Net();
  const sharded = await engineOf(other);
  sharded.destroy();
  open.length = 0;
  const error = thrownBy(() => noGrad(() => scope(() => other.call(input()))));
  expect(error.expected).toBe('its values on this rank');
});

test('nested bodies keep their own units until each body ends', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  const [one, two] = net.blocks.map(({ fc }) => fc.weight) as [Parameter, Parameter];
  const x = input();
  zero.GatheredParameters(one, {}, () => {
    expect(present(engine)).toEqual(['blocks.0']);
    zero.GatheredParameters([one, one, two], {}, () => {
      expect(present(engine)).toEqual(['blocks.0', 'blocks.1']);
      noGrad(() => scope(() => void engine.forward(x)));
      expect(present(engine)).toEqual(['blocks.0', 'blocks.1']);
    });
    expect(present(engine)).toEqual(['blocks.0']);
  });
  expect(present(engine)).toEqual([]);
  engine.withFullWeights(() => expect(present(engine)).toHaveLength(3));
  expect(() =>
    zero.GatheredParameters(net, {}, () => {
      throw new Error('a body of mine');
    }),
  ).toThrow('a body of mine');
  expect(present(engine)).toEqual([]);
  x.dispose();
});

const values = (engine: Engine, parameter: Parameter): number[] =>
  engine.withFullWeights(() =>
    noGrad(() => scope(() => parameter.to('f32').reshape([-1]).toArray())),
  ) as number[];

const repeatValue = (value: number): number[] => new Array<number>(16).fill(value);

test('only values of the modifier rank reach the weights', async () => {
  const net = new Net();
  net.blocks[0]?.requiresGrad_(false);
  const engine = await engineOf(net);
  const [frozen, trained] = net.blocks.map(({ fc }) => fc.weight) as [Parameter, Parameter];
  for (const parameter of [frozen, trained]) {
    const before = values(engine, parameter);
    const fill = (value: number) => () => void noGrad(() => parameter.fill_(value));
    expect(() => zero.GatheredParameters(parameter, {}, fill(1))).toThrow();
    expect(values(engine, parameter)).toEqual(before);
    zero.GatheredParameters(parameter, { modifierRank: 0 }, fill(2));
    expect(values(engine, parameter)).toEqual(repeatValue(2));
    // The writes before an error stay, and the error is the caller's.
    const failInside = () =>
      zero.GatheredParameters(parameter, { modifierRank: 0 }, () => {
        fill(3)();
        throw new Error('a body of mine');
      });
    expect(failInside).toThrow('a body of mine');
    expect(values(engine, parameter)).toEqual(repeatValue(3));
    expect(parameter.isOpen).toBe(false);
  }
  const master = zero.safeGetFullFp32Param(trained) as Tensor;
  expect(master.reshape([-1]).toArray()).toEqual(repeatValue(3));
  master.dispose();
  expect(zero.safeGetFullFp32Param(frozen)).toBeNull();
});

test('a unit that a body holds is gathered again when it is set; others are not', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  const [one, two] = net.blocks.map(({ fc }) => fc.weight) as [Parameter, Parameter];
  const value = Tensor.from(repeatValue(4), { shape: [4, 4] });
  zero.GatheredParameters(one, { modifierRank: 0 }, () => {
    zero.safeSetFullFp32Param(one, value);
    zero.safeSetFullFp32Param(two, value);
    expect(present(engine)).toEqual(['blocks.0']);
    expect(noGrad(() => scope(() => one.to('f32').reshape([-1]).toArray()))).toEqual(
      repeatValue(4),
    );
  });
  expect(present(engine)).toEqual([]);
  expect([values(engine, one), values(engine, two)]).toEqual([repeatValue(4), repeatValue(4)]);
  value.dispose();
});

test('an error of the body comes before one of the exchange; both leave weights released', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  const { world } = engine.parts.ranks;
  const lost = new Error('a lost rank');
  const reduce = jest.spyOn(world, 'allReduce').mockImplementation(() => {
    throw lost;
  });
  const call = (body: () => unknown) => () =>
    zero.GatheredParameters(net.inner.weight, { modifierRank: 0 }, body);
  expect(call(() => 1)).toThrow(lost);
  const localError = new Error('a body of mine');
  const failBody = () => {
    throw localError;
  };
  expect(call(failBody)).toThrow(localError);
  expect(reduce).toHaveBeenCalledTimes(2);
  expect(present(engine)).toEqual([]);
  reduce.mockRestore();
  expect(call(() => 7)()).toBe(7);
});

test('each written parameter comes once from the rank that modifies, unless no rank wrote it', async () => {
  const net = new Net();
  const engine = await engineOf(net);
  const all = [net.inner, ...net.blocks.map(({ fc }) => fc), net.head].map(({ weight }) => weight);
  const { ranks } = engine.parts;
  const sent: [Tensor, number][] = [];
  // Another rank has written the second and the third one.
  const others = [0, 1, 1, 0];
  const world = Object.create(ranks.world, {
    size: { value: 2 },
    allReduce: {
      value: (sums: Tensor) => {
        noGrad(() => sums.add_(Tensor.from(others)));
        return { wait() {} };
      },
    },
    broadcast: {
      value: ({ buffer, offset }: Tensor, root: number) => {
        const found = all.findIndex(
          (parameter) => parameter.buffer === buffer && parameter.offset === offset,
        );
        sent.push([found as never, root]);
        return { wait() {} };
      },
    },
  });
  Object.assign(ranks, { world });
  zero.GatheredParameters(all, { modifierRank: 0 }, () => {
    noGrad(() => {
      for (const parameter of all.slice(0, 2)) parameter.fill_(5);
    });
  });
  Object.assign(ranks, { world: Object.getPrototypeOf(world) });
  // First the parameters of the root rank, then the one that only another rank wrote.
  expect(sent).toEqual([0, 1, 2].map((i) => [i, 0]));
  expect(values(engine, all[1] as Parameter)).toEqual(repeatValue(5));
});

test('a part of a layer has no rank that modifies it', async () => {
  const net = new Net();
  net.inner.weight.partOf({ whole: [8, 4], boxes: [{ offset: [4, 0], shape: [4, 4] }] });
  const engine = await engineOf(net);
  const call = (of: nn.Module, modifierRank: number | null = 0) =>
    zero.GatheredParameters(of, { modifierRank }, () => 7);
  expect(call(net)).toBe(7);
  Object.assign(engine.parts.ranks, { tensorGroup: engine.parts.ranks.world });
  expect(thrownBy(() => call(net))).toMatchObject({
    code: 'DS_ARGUMENT',
    op: 'GatheredParameters modifierRank',
    expected: 'parameters that are whole on every rank',
    got: 'inner.weight, divided over ranks by tensor parallelism',
    hint: expect.stringContaining('load a checkpoint'),
  });
  expect([call(net, null), call(net.head)]).toEqual([7, 7]);
});

test('ranks with other models keep their whole frozen parameters', async () => {
  const net = new Net();
  net.inner.requiresGrad_(false);
  const { engine } = await initialize({
    model: net,
    config: { train_batch_size: 2, optimizer: { type: 'SGD', params: {} } },
    device: cpu(),
  });
  open.push(engine);
  const { ranks } = engine.parts;
  const exchanges = jest.spyOn(ranks.world, 'allReduce');
  const call = () => zero.GatheredParameters(net.inner, { modifierRank: 0 }, () => 7);
  expect([call(), exchanges.mock.calls.length]).toEqual([7, 1]);
  Object.assign(ranks, { broadcastGroup: { size: 2 } });
  expect([call(), exchanges.mock.calls.length]).toEqual([7, 1]);
  exchanges.mockRestore();
});

test('parameters of several engines, an invalid rank and an unfinished body are refused', async () => {
  const [a, b] = [new Net(), new Net()];
  await engineOf(a);
  await engineOf(b);
  const call = (what: unknown, modifierRank: unknown, body: unknown = () => {}) =>
    thrownBy(() =>
      zero.GatheredParameters(what as never, { modifierRank } as never, body as never),
    );
  const both = [a.inner.weight, b.inner.weight];
  for (const rank of [null, 0]) {
    expect(call(both, rank)).toMatchObject({
      code: 'DS_ARGUMENT',
      op: 'GatheredParameters',
      expected: 'parameters of one engine',
      got: 'parameters of several engines',
    });
  }
  for (const rank of [-1, 1, 0.5]) {
    expect(call(a, rank)).toMatchObject({
      expected: 'modifierRank null or 0 to 0',
      got: `${rank}`,
    });
  }
  expect(call(a, null, 3).op).toMatch(/GatheredParameters/);
  expect(
    await refusal(() => zero.GatheredParameters(a, { modifierRank: 0 }, (async () => {}) as never)),
  ).toMatchObject({ hint: expect.stringContaining('Await outside of the body') });
  const other = new nn.Linear(2, 2);
  expect(zero.GatheredParameters(other, { modifierRank: 5 }, () => 7)).toBe(7);
});
