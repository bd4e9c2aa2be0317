// Tests the proposals, errors and output of a plan.
import { checkConfig } from '../../lib/config/index.js';
import { cpu, nn, peft, zero } from '../../lib/index.js';
import { plan } from '../../lib/launch/plan.js';
import { quantizeUnmade } from '../../lib/peft/index.js';
import {
  buildConfig,
  H200,
  type ModelSizes,
  makePlan,
  type PlanRequest,
  plainSetup,
  predictMemory,
  sizesOf,
} from '../../lib/plan/index.js';

const GIB = 2 ** 30;
const sizes = sizesOf(new nn.models.GPT2(nn.models.GPT2.config('1558M')));

const request = (options: Partial<PlanRequest>): PlanRequest => ({
  sizes,
  batch: 8,
  seq: 1024,
  precision: 'bf16',
  rates: H200,
  bf16States: false,
  deviceMemory: 139 * GIB,
  hostMemory: 128 * GIB,
  diskMemory: 0,
  max: { tensor: 1, stages: 1 },
  cluster: { nodes: 1, devicesPerNode: 1, coresPerNode: 16, nodeLink: 50e9 },
  ...options,
});

test('more memory means less offload and recomputation', () => {
  const best = (deviceMemory: number) =>
    makePlan(request({ deviceMemory: deviceMemory * GIB })).best;
  expect(best(80)?.setup).toMatchObject({
    optimizer: 'device',
    checkpointing: false,
    microBatch: 8,
  });
  expect(best(6)?.setup).toMatchObject({ optimizer: 'cpu', ratio: 1 });
  expect(best(6)?.device).toBeLessThan(6 * GIB);
  expect(best(1)).toBeNull();
  const speeds = [80, 32, 16, 6].map((gib) => best(gib)?.tokensPerSecond as number);
  expect(speeds).toEqual([...speeds].sort((a, b) => b - a));
});

test('host memory limits all ranks of a machine together', () => {
  const cluster = { nodes: 1, devicesPerNode: 2, coresPerNode: 32, nodeLink: 50e9 };
  const planRequest = request({ deviceMemory: 8 * GIB, cluster });
  expect(makePlan(planRequest).best).not.toBeNull();
  expect(makePlan({ ...planRequest, hostMemory: 8 * GIB }).best).toBeNull();
});

test('candidates that fit come first, and the best configuration is valid', () => {
  for (const ranks of [1, 2, 8]) {
    const cluster = { nodes: 1, devicesPerNode: ranks, coresPerNode: 32, nodeLink: 50e9 };
    const { candidates } = makePlan(request({ deviceMemory: 8 * GIB, cluster }));
    const fits = candidates.map((candidate) => candidate.fits);
    expect(fits).toEqual([...fits].sort((a, b) => Number(b) - Number(a)));
    for (const candidate of candidates) {
      const { errors } = checkConfig(buildConfig(candidate), { worldSize: ranks });
      expect([buildConfig(candidate), errors]).toEqual([buildConfig(candidate), []]);
    }
  }
});

/** Elements of the largest tile: units are cut into equal tiles of at most `size` elements. */
const largestTile = ({ root, block }: ModelSizes, size: number): number =>
  Math.max(...[root, block].map((unit) => unit / Math.ceil(unit / size)));

test('state that the device updates costs it two gradients, upper halves and two windows, and the host less', () => {
  const { candidates } = makePlan(request({ deviceMemory: 32 * GIB, batch: 1 }));
  const found = candidates.filter(
    ({ setup }) => setup.stage === 2 && setup.ratio === 1 && setup.speculates,
  );
  const [one, other] = [0, 1].map((kept) =>
    found.filter(({ setup }) => Number(setup.gpuShare > 0) === kept && setup.checkpointing),
  ) as [typeof found, typeof found];
  const [plain, shared] = [one[0], other[0]] as [(typeof found)[0], (typeof found)[0]];
  const { gpuShare } = shared.setup;
  expect(gpuShare).toBeGreaterThan(0.3);
  expect(gpuShare).toBeLessThan(0.6);
  const gradients = 4 * gpuShare * sizes.parameters;
  const upper = 2 * gpuShare * sizes.parameters;
  // Includes the f32 masters of the tile under update.
  const windows = (2 * (8 + 2 + 1 / 8) + 4) * largestTile(sizes, 2 ** 24);
  const device = shared.memory.device.optimizer - plain.memory.device.optimizer;
  expect(device).toBeCloseTo(gradients + upper + windows, -1);
  const kept = plain.memory.host.optimizer - shared.memory.host.optimizer;
  expect(kept).toBeCloseTo((4 - 2 - 1 / 8) * gpuShare * sizes.parameters, -1);
  expect(plain.memory.host.buffers - shared.memory.host.buffers).toBeCloseTo(gradients, -1);
  expect(shared.time.step).toBeLessThan(plain.time.step);
  expect(buildConfig(plain)).toMatchObject({
    zero_optimization: { offload_optimizer: { gpu_share: 0 } },
  });
});

test('after the step decision masters are in halves: 3.9 bytes a parameter less of the host, and a longer step', () => {
  const model = new nn.models.GPT2(nn.models.GPT2.config('10B'));
  const planRequest = request({ sizes: sizesOf(model), batch: 10, deviceMemory: 32 * GIB });
  expect(makePlan(planRequest).best?.setup).toMatchObject({
    speculates: false,
    stage: 2,
    ratio: 1,
  });
  const { candidates } = makePlan({ ...planRequest, hostMemory: 252 * GIB });
  const of = (speculates: boolean) =>
    candidates.find(
      ({ setup }) => setup.ratio === 1 && !setup.gpuShare && setup.speculates === speculates,
    ) as (typeof candidates)[0];
  const [tried, after] = [of(true), of(false)];
  const { parameters } = planRequest.sizes;
  const slots = 2 * 2 * largestTile(planRequest.sizes, 2 ** 26);
  expect(after.memory.host.optimizer).toBeCloseTo((8 + 2 + 1 / 8) * parameters, -1);
  expect(after.memory.host.buffers).toBeCloseTo(2 * parameters + slots, -1);
  expect(tried.memory.host.optimizer + tried.memory.host.buffers).toBeCloseTo(16 * parameters, -1);
  expect(after.host).toBeLessThan(125 * GIB);
  expect(after.time.step).toBeGreaterThan(tried.time.step);
  expect(buildConfig(after)).toMatchObject({
    zero_optimization: { offload_optimizer: { super_offload: false } },
  });
});

test.each([
  [true, 2],
  [false, 1],
])(
  'gradients of offloaded state are under way unit by unit on several ranks: overlap %s',
  (overlap, units) => {
    const setup = { ...plainSetup, stage: 2, ranks: 2, overlap } as const;
    const gradients = (optimizer: 'cpu' | 'device'): number =>
      predictMemory(sizes, { ...setup, optimizer }).device.gradients;
    const { root, block } = sizes.trained;
    // In bf16, plus this rank's own part before it has reached the host.
    expect(gradients('cpu')).toBeLessThanOrEqual(2 * 1.5 * (root + units * block));
    expect(gradients('cpu')).toBeGreaterThan(2 * units * block);
    // On the device they wait for buckets of 5e8 elements.
    expect(gradients('device')).toBeGreaterThan(2 * units * 5e8);
  },
);

test('state on a disk: 12 bytes a parameter there, a gradient and slots in memory', () => {
  const planRequest = request({ deviceMemory: 16 * GIB, hostMemory: 8 * GIB, batch: 1 });
  expect(makePlan(planRequest).best).toBeNull();
  const { parameters, root, block } = sizes;
  const plan = makePlan({ ...planRequest, diskMemory: 20e9 });
  const best = plan.best as (typeof plan.candidates)[0];
  expect(best?.setup).toMatchObject({ optimizer: 'nvme', ranks: 1 });
  expect(best?.disk).toBe(12 * parameters);
  expect(best?.memory.device.optimizer).toBe(0);
  const { optimizer, buffers } = best.memory.host;
  const slots = 4 * 12 * Math.max(root, block);
  expect([optimizer, buffers]).toEqual([0, 2 * parameters + slots]);
  expect(best?.time.update).toBeCloseTo((12 * parameters) / 2e9, 6);
  const faster = makePlan({ ...planRequest, diskMemory: 20e9, rates: { ...H200, disk: 4e9 } }).best;
  expect(faster?.time.update).toBeCloseTo((12 * parameters) / 4e9, 6);
  expect(makePlan({ ...planRequest, diskMemory: 18e9 }).best).toBeNull();
  const config = buildConfig(best);
  expect(config.zero_optimization).toMatchObject({
    offload_optimizer: { device: 'nvme', nvme_path: '/nvme' },
  });
  expect(checkConfig(config, { worldSize: 1 }).errors).toEqual([]);
});

test('the ranks of a machine share its disk', () => {
  const cluster = { nodes: 1, devicesPerNode: 4, coresPerNode: 64, nodeLink: 50e9 };
  const { candidates } = makePlan(request({ cluster, diskMemory: 2e12 }));
  const found = candidates.find(({ setup }) => setup.optimizer === 'nvme' && setup.stage === 2);
  expect(found?.memory.disk).toBeCloseTo(3 * sizes.parameters);
  expect(found?.disk).toBeCloseTo(12 * sizes.parameters);
  expect(found?.time.update).toBeCloseTo((12 * sizes.parameters) / 2e9, 6);
});

describe('ranks that share a model', () => {
  const cluster = { nodes: 1, devicesPerNode: 4, coresPerNode: 64, nodeLink: 50e9 };
  const max = { tensor: 2, stages: 4 };
  const { candidates } = makePlan(request({ cluster, max, batch: 2 }));
  const of = (tensor: number, stages: number, microBatch = 1) =>
    candidates.find(
      ({ setup }) =>
        setup.tensor === tensor &&
        setup.stages === stages &&
        setup.microBatch === microBatch &&
        setup.optimizer === 'device' &&
        !setup.checkpointing &&
        setup.stage === 0,
    ) as (typeof candidates)[0];

  test('every candidate has all ranks, the whole batch and a valid configuration', () => {
    const ways = new Set(candidates.map(({ setup }) => `${setup.tensor} x ${setup.stages}`));
    expect([...ways].sort()).toEqual(['1 x 1', '1 x 2', '1 x 4', '2 x 1', '2 x 2']);
    for (const candidate of candidates) {
      const { tensor, stages, ranks, microBatch, accumulation, stage } = candidate.setup;
      expect(tensor * stages * ranks).toBe(4);
      expect(ranks * microBatch * accumulation).toBe(8);
      if (stages > 1) expect(stage).toBeLessThan(2);
      const { errors } = checkConfig(buildConfig(candidate), { worldSize: ranks });
      expect([buildConfig(candidate), errors]).toEqual([buildConfig(candidate), []]);
    }
    expect(buildConfig(of(2, 2))).toMatchObject({
      tensor_parallel: { autotp_size: 2 },
      pipeline: { stages: 2 },
    });
  });

  test('two ranks per layer hold half of weights, gradients, state and logits', () => {
    const [whole, half] = [of(1, 1), of(2, 1)].map((candidate) => candidate.memory.device) as [
      (typeof candidates)[0]['memory']['device'],
      (typeof candidates)[0]['memory']['device'],
    ];
    for (const part of ['weights', 'optimizer'] as const) {
      expect(half[part]).toBeCloseTo(whole[part] / 2, -3);
    }
    expect(half.activations).toBeGreaterThan(whole.activations / 2);
    expect(half.activations).toBeLessThan(whole.activations);
    // By hand, for 1 sample of 1024 tokens with width 1600, and 4 micro-batches. Each of 48 blocks
    // has 4 all-reduces over two ranks.
    const reductions = (4 * 4 * 48 * 2 * 1024 * 1600 * 2) / 2 / H200.link;
    expect(of(2, 1).time.exposed).toBeGreaterThan(reductions);
  });

  test('stages: embedding and their blocks, a micro-batch under way for each, and idle ones', () => {
    const { root, block, layers, parameters } = sizes;
    const candidate = of(1, 4);
    expect(candidate.memory.device.weights).toBe(2 * (root + (layers / 4) * block));
    expect(candidate.memory.device.optimizer).toBe(12 * (root + (layers / 4) * block));
    expect(candidate.memory.device.weights).toBeGreaterThan((2 * parameters) / 4);
    // 8 micro-batches and 3 more, of a quarter of the blocks each.
    const [few, many] = [of(1, 4, 8), of(1, 4, 1)].map(({ time }) => time.compute);
    expect(of(1, 4, 8).setup.accumulation).toBe(1);
    expect(few).toBeGreaterThan(many as number);
    const blocks = (tensor: number, stages: number) => of(tensor, stages).memory.device.activations;
    expect(blocks(1, 4)).toBeGreaterThan(0.8 * blocks(1, 1));
    expect(blocks(1, 4)).toBeLessThan(1.2 * blocks(1, 1));
  });
});

test('a slow link between machines prefers candidates with little exchange', () => {
  const cluster = { nodes: 4, devicesPerNode: 8, coresPerNode: 128, nodeLink: 5e9 };
  const slow = makePlan(request({ cluster }));
  const fast = makePlan(request({ cluster: { ...cluster, nodeLink: 400e9 } }));
  const of = (plan: typeof slow, stage: number) =>
    plan.candidates.find(({ setup }) => setup.stage === stage && setup.microBatch === 1)?.time
      .exposed as number;
  expect(of(slow, 3)).toBeGreaterThan(of(slow, 1));
  expect(of(slow, 1)).toBeGreaterThan(2 * of(fast, 1));
});

test.each([
  [{ batch: 0 }, /^plan batch: expected a positive whole number, got 0/],
  [{ seq: 2048 }, /^plan seq: expected at most the model's 1024, got 2048/],
])('%o is refused', (input, message) => {
  expect(() => makePlan(request(input))).toThrow(message);
});

test('ds plan prints the ways, the bytes of the best and its configuration', () => {
  const flags = { model: '124M', batch: 4, gpuMemory: 24 * GIB, hostMemory: 64 * GIB };
  const sharing = { tp: 1, pp: 1, nvmeRate: 2 };
  const machine = { gpus: 2, nodes: 1, cores: 16, link: 50 };
  const options = { ...flags, ...sharing, ...machine, precision: 'bf16' } as const;
  const { fits, output } = plan(options);
  expect(fits).toBe(true);
  expect(output).toMatch(/^ +GPU +host +step +tokens\/s +way\nbest/);
  expect(output).toMatch(/Best: stage \d.*\nEach GPU: weights .* GiB, gradients/);
  expect(output).toMatch(
    /0\.124e9 parameters; 1 x 2 GPUs of 24\.0 GiB, 64\.0 GiB of memory and 16 cores/,
  );
  const json = JSON.parse(plan({ ...options, json: true }).output);
  expect(json.candidates).toContainEqual(json.best);
  const none = plan({ ...options, gpuMemory: GIB / 4 });
  expect([none.fits, none.output]).toEqual([false, expect.stringContaining('Nothing fits.')]);
});

test('if nothing fits, ds plan prints the missing memory of the nearest candidate', () => {
  const sharing = { tp: 1, pp: 1, nvmeRate: 2 };
  const machine = { gpus: 1, nodes: 1, cores: 16, link: 50, hostMemory: 128 * GIB };
  const options = { ...sharing, ...machine, model: '40B', batch: 1, precision: 'bf16' } as const;
  const lackMessage = (nvmeSpace: number, gpuMemory = 139) =>
    plan({ ...options, nvmeSpace: nvmeSpace * GIB, gpuMemory: gpuMemory * GIB }).output;
  const small = lackMessage(64);
  expect(small).toMatch(/^ +GPU +host +disk +step +tokens\/s +way\ntoo much/);
  expect(small).toMatch(
    /Nothing fits\. The nearest is .*on the host.*\.\nDoes not fit: it needs 2\d\d\.\d GiB of the 139\.0 GiB of each GPU, 3\d\d\.\d GiB of the 128\.0 GiB of each machine's memory\.\nEach GPU: weights/,
  );
  expect(lackMessage(440)).toMatch(
    /The nearest is .*optimizer on disk.*\nDoes not fit: it needs 454\.8 GiB of the 440\.0 GiB of each machine's disk\./,
  );
  expect(lackMessage(500)).toMatch(/Best: stage 2, optimizer on disk/);
});

test('zero.estimateMemory() returns bytes by stage and offload without creating a parameter', () => {
  const before = cpu().memory.inUse;
  const model = new nn.models.GPT2(nn.models.GPT2.config('1558M'));
  const rows = zero.estimateMemory(model, {
    ranks: 4,
    microBatch: 8,
    activationCheckpointing: true,
  });
  expect(cpu().memory.inUse).toBe(before);
  const [whole, , , sharded] = rows;
  expect(whole?.device.optimizer).toBeCloseTo(12 * 1_557_611_200);
  expect(sharded?.device.optimizer).toBeCloseTo(3 * 1_557_611_200);
  expect(
    rows.map(
      ({ stage, offloadOptimizer, offloadParam }) => `${stage} ${offloadOptimizer} ${offloadParam}`,
    ),
  ).toEqual([
    '0 none none',
    '1 none none',
    '2 none none',
    '3 none none',
    '1 cpu none',
    '2 cpu none',
    '3 cpu none',
    '3 cpu cpu',
  ]);
  expect(() => zero.estimateMemory({} as never)).toThrow(
    /zero\.estimateMemory: expected a language model/,
  );
  expect(() => zero.estimateMemory(model, { rank: 2 } as never)).toThrow(/Did you mean "ranks"/);
});

test('moments in bf16 are 4 bytes a parameter less, and in the configuration', () => {
  const model = new nn.models.GPT2(nn.models.GPT2.config('1558M'));
  const [exact, narrow] = [false, true].map((bf16OptimizerStates) =>
    zero.estimateMemory(model, { ranks: 4, bf16OptimizerStates, superOffload: false }),
  );
  exact?.forEach(({ stage, offloadOptimizer, device, host }, i) => {
    const saved = (4 * 1_557_611_200) / (stage === 0 ? 1 : 4);
    const other = narrow?.[i];
    const place = offloadOptimizer === 'cpu' ? 'host' : 'device';
    const [more, less] = place === 'host' ? [host, other?.host] : [device, other?.device];
    expect(more.optimizer - (less?.optimizer ?? 0)).toBeCloseTo(saved);
  });
  expect(() => zero.estimateMemory(model, { bf16OptimizerStates: 1 as never })).toThrow(
    /bf16OptimizerStates: expected true or false/,
  );
  const best = (bf16States: boolean, precision: 'bf16' | 'fp16' = 'bf16') =>
    buildConfig(makePlan(request({ bf16States, precision })).best as never);
  expect(best(false).bf16).toEqual({ enabled: true });
  expect(best(true).bf16).toEqual({ enabled: true, bf16_optimizer_states: true });
  expect(best(true, 'fp16').bf16).toEqual({ enabled: false, bf16_optimizer_states: true });
  expect(checkConfig(best(true), { worldSize: 1 }).errors).toEqual([]);
});

test.each([
  [{ precision: 'fp8' }, /precision: expected "bf16", "fp16", "fp32", got "fp8"/],
  [{ stateBytes: -1 }, /stateBytes: expected/],
  [{ stateBytes: Number.NaN }, /stateBytes: expected/],
  [{ seq: 2048 }, /seq: expected at most the model's 1024, got 2048/],
  [{ activationCheckpointing: 'yes' }, /activationCheckpointing: expected/],
  [{ ranks: 0 }, /ranks: expected/],
])('zero.estimateMemory() refuses %j', (options, message) => {
  const model = new nn.models.GPT2(nn.models.GPT2.config('124M'));
  expect(() => zero.estimateMemory(model, options as never)).toThrow(message);
});

const asked = { batch: 4, seq: 256, gpuMemory: 24 * GIB, hostMemory: 64 * GIB, cores: 16 };
const flags = {
  model: '124M',
  ...asked,
  gpus: 1,
  nodes: 1,
  link: 50,
  nvmeRate: 2,
  tp: 1,
  pp: 1,
  precision: 'bf16' as const,
};

test('adapters are planned: trained parameters and frozen weights', () => {
  const before = cpu().memory.inUse;
  const ways = [{}, { lora: 16 }, { qlora: true as const, loraTargets: 'all-linear' }].map(
    (item) => {
      const { output } = plan({ ...flags, ...item, json: true });
      return JSON.parse(output).best;
    },
  );
  expect(cpu().memory.inUse).toBe(before);
  const [whole, lora, qlora] = ways.map(({ memory, time }) => ({ ...memory.device, time }));
  // 12 blocks, 16 x (768 + 2304) of c_attn: f32, with a gradient and two moments.
  const adapters = 12 * 16 * (768 + 2304);
  expect(lora.optimizer).toBeCloseTo(8 * adapters, -2);
  expect(lora.weights - whole.weights).toBeCloseTo(4 * adapters, -2);
  expect(qlora.weights).toBeLessThan(0.55 * whole.weights);
  expect(lora.time.step).toBeLessThan(whole.time.step);
  expect(lora.time.update).toBeLessThan(0.01 * whole.time.update);
  const { output } = plan({ ...flags, lora: 16 });
  expect(output).toContain('0.125e9 parameters, including 0.59e6 of trained adapters in f32');
  expect(output).toContain('Predictions for an 8B Llama on one H200');
});

test('4-bit weights of an unbuilt model take the bytes of a built one', () => {
  const make = () =>
    new nn.models.Llama({
      vocabSize: 40,
      maxSeq: 16,
      layers: 2,
      channels: 32,
      heads: 4,
      hidden: 56,
    });
  const modelSizes = sizesOf(peft.addLora(peft.quantize(make()), { r: 4 }));
  const counted = sizesOf(peft.addLora(quantizeUnmade(make()), { r: 4 }));
  expect(counted).toEqual(modelSizes);
  // Matmuls read all weights, in any format.
  expect(counted.packed.count).toBe(2 * (4 * 32 * 32 + 3 * 32 * 56));
  expect(counted.unpacked).toBe(32 * 56);
  // 4-bit codes and scales; each layer also has two codebooks, a scale of scales and an offset.
  expect(counted.packed.bytes).toBe(2 * (4 * (512 + 16 + 1096) + 3 * (896 + 28 + 1096)));
});

test.each([
  [{ lora: 8, qlora: 8 }, '--lora or --qlora'],
  [{ lora: 8, tp: 2 }, 'adapters are not cut'],
  [{ loraTargets: 'all-linear' }, '--lora or --qlora together with it'],
  [{ lora: 8, loraTargets: 'nothing' }, 'nothing'],
])('%j of a plan is refused', (input, message) => {
  expect(() => plan({ ...flags, ...input })).toThrow(message);
});
