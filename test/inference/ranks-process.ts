// One rank of a tensor-parallel inference engine; compares its texts with an engine that has the
// whole model.
import { join } from 'node:path';
import { type Distributed, distributed, initDistributed } from '../../lib/comm/index.js';
import {
  cpu,
  DsError,
  type inference,
  initInference,
  initialize,
  nn,
  noGrad,
  parallel,
  scope,
  seed,
  Tensor,
} from '../../lib/index.js';
import { resolveInferenceConfig } from '../../lib/inference/config/index.js';
import { type ModelRanks, openRanks } from '../../lib/inference/ranks/open-ranks.js';
import { fromPretrainedCut } from '../../lib/models/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { packageRoot } from '../../lib/runtime/package-root.js';
import { poll } from '../../lib/runtime/poll.js';
import { numel } from '../../lib/runtime/view.js';
import { Checks, computeOn } from '../parallel/checks.js';
import { quiet } from '../support/quiet.js';
import { mixture, models, packedPhi, sizes } from './ranks-models.js';

/** The one argument, as JSON. */
export interface RanksJob {
  kind: DeviceKind;
  ranks: number;
  /** A folder in the format of Hugging Face, and a prompt with the expected tokens. */
  folder: string;
  prompt: number[];
  tokens: number[];
  /** An empty folder that all ranks can write to. */
  home: string;
  /** The rank that exits in the middle of a text; null for no rank. */
  dies: number | null;
  /**
   * A fault of rank 1: another model folder, no memory, or another configuration, also before any
   * rank has joined the job.
   */
  odd?: { folder: string } | 'no memory' | { config: string | object; joins?: boolean };
  /** Whether rank 1, a follower, throws in the middle of a text and continues. */
  fails?: boolean;
  /** Whether all ranks fail to read the configuration; each then trains. */
  unread?: boolean;
}

const { GPT2, Llama } = nn.models;
const checks = new Checks();
const prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6], [7]];
const greedy = { temperature: 0, ignoreEos: true, maxNewTokens: 8 };
const drawn = { temperature: 0.8, topP: 0.9, seed: 5, ignoreEos: true, maxNewTokens: 6 };

function build(make: () => nn.models.CausalLM): nn.models.CausalLM {
  seed(11);
  return make();
}

/** Texts and logits of an engine. */
async function writeTexts(engine: inference.InferenceEngine) {
  const requests = [
    ...prompts.map((prompt) => ({ prompt, ...greedy })),
    { prompt: [3, 1, 4], n: 2, logprobs: 2, ...drawn },
  ];
  const texts = await engine.generateBatch(requests);
  const logits = scope(() => {
    const device = engine.module.computesIn.device;
    const tokens = Tensor.from(Int32Array.from(prompts[1] as number[]), { shape: [2, 10], device });
    return noGrad(() => engine.call(tokens)).toArray();
  });
  const likely = texts
    .at(-1)
    ?.flatMap(({ logprobs = [] }) => logprobs.map(({ logprob }) => logprob));
  return { tokens: texts.flat().map((one) => [...one.tokens]), logits, likely: likely ?? [] };
}

/** Projections with one input that are adjacent, so that they run as one matmul. */
function layersOf({ module }: inference.InferenceEngine): string {
  const all = new Map(module.namedModules());
  return [...all]
    .filter(([path]) => /(k|up)_proj$/.test(path))
    .map(([path, one]) => {
      const before = path.replace(/k_proj$/, 'q_proj').replace(/up_proj$/, 'gate_proj');
      const [a, b] = [one, all.get(before)].map((layer) => layer?.parameters()[0]);
      return `${path} ${a?.buffer === b?.buffer}`;
    })
    .join();
}

/** Compares texts and logits. `source`: a function that makes a model, or a folder. */
async function alike(
  name: string,
  source: (() => nn.models.CausalLM) | string,
  shared: inference.InferenceConfig,
): Promise<void> {
  const { tensor_parallel: _, moe: __, ...alone } = shared;
  const open = () => (typeof source === 'string' ? source : build(source));
  const whole = await initInference(open(), alone);
  const part = await initInference(open(), shared);
  checks.count++;
  const [layers, allLayers] = [layersOf(part), layersOf(whole)];
  if (layers !== allLayers) checks.failures.push(`${name}: joined: ${layers}`);
  const [wanted, got] = [await writeTexts(whole), await writeTexts(part)];
  checks.count += 2;
  checks.near(`${name}: logits`, got.logits, wanted.logits);
  checks.near(`${name}: logprobs`, got.likely, wanted.likely);
  got.tokens.forEach((tokens, i) => {
    checks.same(`${name}: text ${i}`, tokens, wanted.tokens[i] as number[]);
  });
  const heldBytes = ({ module }: inference.InferenceEngine): number =>
    module.parameters().reduce((sum, { numel }) => sum + numel, 0);
  const share = heldBytes(part) / heldBytes(whole);
  if (share > 0.75) checks.failures.push(`${name}: this rank has ${share} of the weights`);
  const names = ({ module }: inference.InferenceEngine): string =>
    [...module.namedParameters()].map(([path]) => path).join();
  if (names(part) !== names(whole)) checks.failures.push(`${name}: this rank has ${names(part)}`);
  await part.destroy();
  await whole.destroy();
}

/** Layers from quantized checkpoints, with whole groups at every split of the heads. */
async function checkPacked({ ranks }: RanksJob, shared: inference.InferenceConfig): Promise<void> {
  const home = join(packageRoot(), 'test', 'golden', 'quantized');
  const chosen =
    ranks === 2
      ? ['gptq', 'gptq-act-order', 'gptq-8bit', 'awq', 'pack-quantized', 'pack-quantized-zeros']
      : ['gptq-act-order', 'pack-quantized-8bit'];
  for (const name of chosen) {
    await alike(name, join(home, name), { ...shared, dtype: 'fp32', max_out_tokens: 32 });
  }
  const awq = join(home, 'awq');
  if (ranks === 4) {
    await expectRefusal(
      'fewer groups than ranks',
      () => initInference(awq, { ...shared, dtype: 'fp32' }),
      /DS_ARGUMENT.*at most [23] ranks for [23] groups of inputs/,
    );
    return;
  }
  const save = { ...shared, save_mp_checkpoint_path: join(home, 'never') };
  await expectRefusal(
    'parts of packed layers',
    () => initInference(awq, { ...save, max_out_tokens: 32 }),
    /DS_CONFIG.*save_mp_checkpoint_path.*quantized layers that are sharded/,
  );
}

/**
 * A model from a folder: blocks for little more than one text, an abandoned stream, an abort
 * signal.
 */
async function folder(
  { folder: path, prompt, tokens }: RanksJob,
  shared: inference.InferenceConfig,
): Promise<void> {
  const engine = await initInference(path, {
    ...shared,
    dtype: 'fp32',
    max_out_tokens: 128,
    kv_cache: { block_size: 16, blocks: 7, prefix_caching: false },
  });
  const request = { prompt, ...greedy, maxNewTokens: tokens.length };
  const all = await engine.generateBatch([request, request, request]);
  for (const [one] of all) checks.same('like transformers', [...(one?.tokens ?? [])], tokens);
  const isFirst = engine.rank === 0;
  if (isFirst !== engine.stats().preemptions > 0) checks.failures.push('nobody gave way on rank 0');
  const long = () => engine.generate({ ...request, maxNewTokens: 90 });
  await expectRefusal('too long', long, /DS_LIMIT.*at most 112 tokens/);
  const controller = new AbortController();
  const seen: number[] = [];
  for await (const piece of engine.stream({ ...request, signal: controller.signal })) {
    seen.push(...piece.tokens);
    if (seen.length === 5) controller.abort();
  }
  checks.same('until the signal', seen.slice(0, 5), tokens.slice(0, 5));
  for await (const _ of engine.stream(request)) break;
  const [again] = await engine.generate(request);
  checks.same('after all that', [...(again?.tokens ?? [])], tokens);
  const { blocksUsed, running } = engine.stats();
  checks.same('blocks', [blocksUsed, running], [0, 0]);
  await engine.destroy();
}

/** Each rank loads its part of a training checkpoint. */
async function checkTrained({ home }: RanksJob, shared: inference.InferenceConfig): Promise<void> {
  const folder = join(home, 'trained');
  const { tensor_parallel: _, ...alone } = shared;
  const whole = await initInference(folder, alone);
  const [wanted] = await whole.generate({ prompt: [3, 1, 4], ...greedy });
  await whole.destroy();
  const part = await initInference(folder, shared);
  const [got] = await part.generate({ prompt: [3, 1, 4], ...greedy });
  checks.same('trained', [...(got?.tokens ?? [])], [...(wanted?.tokens ?? [])]);
  const { layers } = (await openRanks(resolveInferenceConfig(shared))) as ModelRanks;
  await part.destroy();
  const host = cpu();
  // Buffers of earlier engines, freed during the load, would hide its peak.
  await quiet(() => host.memory.inUse);
  host.resetPeaks();
  const before = host.memory.inUse;
  const read = await fromPretrainedCut(folder, {}, (model) => parallel.parallelize(model, layers));
  const peak = host.memory.peakInUse - before;
  const numels = read.parameters().map(({ region }) => numel(region.whole));
  const bytes = 4 * numels.reduce((sum, one) => sum + one, 0);
  if (peak === 0 || peak > 0.8 * bytes) checks.failures.push(`trained: ${peak} of ${bytes} bytes`);
  for (const parameter of read.parameters()) parameter.dispose();
}

/** Each rank writes its part of the weights, and loads it again. */
async function checkSaved({ home }: RanksJob, shared: inference.InferenceConfig): Promise<void> {
  for (const [i, make] of Object.values(models).entries()) {
    const folder = join(home, String(i));
    const first = await initInference(build(make), { ...shared, save_mp_checkpoint_path: folder });
    const [one] = await first.generate({ prompt: [3, 1, 4], ...greedy });
    await first.destroy();
    const checkpoint = join(folder, 'ds_inference_config.json');
    const second = await initInference(folder, { ...shared, checkpoint });
    const [same] = await second.generate({ prompt: [3, 1, 4], ...greedy });
    checks.same(`saved ${i}`, [...(same?.tokens ?? [])], [...(one?.tokens ?? [])]);
    await second.destroy();
  }
  const again = { ...shared, save_mp_checkpoint_path: join(home, '0') };
  const make = models['GPT-2 of 5 heads'] as () => nn.models.CausalLM;
  await expectRefusal(
    'a folder with files',
    () => initInference(build(make), again),
    /DS_ARGUMENT.*a folder that contains|DS_IO.*another rank/,
  );
}

async function expectRefusal(
  name: string,
  act: () => Promise<unknown>,
  pattern: RegExp,
): Promise<void> {
  checks.count++;
  const error = await act()
    .then(() => null)
    .catch((thrown: unknown) => thrown);
  const outcome = error instanceof DsError ? `${error.code} ${error.message}` : String(error);
  if (!pattern.test(outcome)) checks.failures.push(`${name}: ${outcome}`);
}

/** Only rank 0 gets requests; invalid calls throw on every rank. */
async function checkFollowing(shared: inference.InferenceConfig): Promise<void> {
  const make = models['GPT-2 of 5 heads'] as () => nn.models.CausalLM;
  // The message for a step of all prompts at once takes two parts.
  const large = { max_ragged_batch_size: 4096, max_ragged_sequence_count: 40 };
  const engine = await initInference(build(make), { ...shared, ...large });
  const isFirst = engine.rank === 0;
  await expectRefusal(
    'beams',
    () => engine.generate({ prompt: [3], numBeams: 2 }),
    /DS_ARGUMENT.*numBeams: expected an engine that has the whole model/,
  );
  const odd = engine.generate({ prompt: [3 + engine.rank], ...greedy });
  if (isFirst) await odd;
  else
    await expectRefusal(
      'another request',
      () => odd,
      /DS_ARGUMENT.*the same requests.*a different request on rank \d/,
    );
  const following = engine.follow();
  if (!isFirst) {
    await expectRefusal(
      'a request of a follower',
      () => engine.generate({ prompt: [3], ...greedy }),
      /DS_ARGUMENT.*which this rank follows/,
    );
    await following;
  } else {
    await following;
    const [one] = await engine.generate({ prompt: [3, 1, 4], ...greedy });
    checks.same('followed', [one?.tokens.length as number], [8]);
    const long = await engine.generateBatch(
      Array.from({ length: 33 }, (_, i) => ({
        prompt: Array(60).fill(i),
        ...greedy,
        maxNewTokens: 3,
      })),
    );
    checks.same('many', [long.length], [33]);
    await expectRefusal(
      'a forward',
      async () => engine.call(Tensor.from(Int32Array.of(1), { shape: [1, 1] })),
      /DS_ARGUMENT.*all ranks begin together/,
    );
  }
  await engine.destroy();
}

/** One rank exits while the others compute. */
async function loseRank(
  { dies, ...job }: RanksJob,
  shared: inference.InferenceConfig,
): Promise<string> {
  const engine = await initInference(job.folder, { ...shared, dtype: 'fp32', max_out_tokens: 128 });
  const text = engine.stream({ prompt: job.prompt, ...greedy, maxNewTokens: 60 });
  let count = 0;
  try {
    for await (const _ of text) if (++count === 5 && engine.rank === dies) process.exit(7);
  } catch (error) {
    await engine.destroy().catch(() => {});
    return (error as DsError).message;
  }
  return 'nothing thrown';
}

/**
 * One rank cannot create its engine: it finds no folder, or runs out of memory in its first
 * forward.
 */
async function apart(
  { folder: path, odd }: RanksJob,
  shared: inference.InferenceConfig,
): Promise<string> {
  const joins = typeof odd === 'object' && 'joins' in odd;
  if (!joins) {
    await initDistributed({
      device: shared.device as string,
      mesh: { tp: 2 },
      timeout: 20_000,
    });
  }
  const isOdd = process.env.RANK === '1';
  let config: inference.InferenceConfig | string = { ...shared, max_out_tokens: 64 };
  let model: nn.models.CausalLM | string = path;
  if (odd === 'no memory') {
    model = await nn.models.fromPretrained(path, { dtype: 'f32' });
    const layer = [...model.modules()].find((one) => one instanceof nn.RMSNorm);
    if (isOdd) {
      layer?.registerForwardPreHook(() => {
        const code = 'DS_OUT_OF_MEMORY';
        throw new DsError({ code, op: 'Buffer.allocate', expected: 'memory', got: 'none' });
      });
    }
  } else if (isOdd && odd && 'folder' in odd) model = odd.folder;
  else if (isOdd && odd) {
    const { config: other } = odd as { config: string | object };
    config = typeof other === 'string' ? other : { ...config, ...other };
  }
  const outcome = await initInference(model, config).then(
    () => 'an engine',
    ({ message }: Error) => message,
  );
  const own = distributed();
  if (!own) return outcome;
  // It stays until the other rank has received the error.
  const last = Date.now() + 30_000;
  if (isOdd) await poll(() => isOver(own) || Date.now() > last);
  await own.destroy();
  return outcome;
}

/** A follower throws and stays: the first rank's texts end with its error. */
async function misleadRank(job: RanksJob, shared: inference.InferenceConfig): Promise<string[]> {
  const own = await initDistributed({ device: shared.device as string, mesh: { tp: 2 } });
  const engine = await initInference(job.folder, { ...shared, dtype: 'fp32', max_out_tokens: 128 });
  const warnings: string[] = [];
  const note = ({ message }: Error): void => void warnings.push(message);
  if (engine.rank === 1) {
    let calls = 0;
    const layer = [...engine.module.modules()].find((one) => one instanceof nn.RMSNorm);
    layer?.registerForwardPreHook(() => {
      if (++calls === 5) throw new Error('a layer of mine');
    });
    await engine.follow().catch(note);
    // It stays until the first rank has received the error.
    await poll(() => isOver(own));
  } else {
    await engine.follow();
    const request = { prompt: job.prompt, ...greedy, maxNewTokens: 60 };
    await Promise.all([engine.generate(request).catch(note), engine.generate(request).catch(note)]);
    await engine.generate(request).catch(note);
  }
  await engine.destroy().catch(() => {});
  await own.destroy();
  return warnings;
}

/** The ranks could not agree on a mesh, so the next job must have a mesh of its own. */
async function afresh({ folder: path, home }: RanksJob): Promise<string> {
  const config = join(home, 'no such file.json');
  await expectRefusal('unread', () => initInference(path, config), /DS_CONFIG|no such file/);
  const { engine } = await initialize({
    model: new nn.Linear(4, 4),
    config: { train_batch_size: 2, optimizer: { type: 'AdamW', params: {} } },
  });
  engine.destroy();
  const own = distributed();
  await own?.destroy();
  return [own?.mesh.shape, ...checks.failures].join();
}

function isOver({ world }: Distributed): boolean {
  try {
    world.check();
    return false;
  } catch {
    return true;
  }
}

async function main(): Promise<void> {
  const job = JSON.parse(process.argv[2] as string) as RanksJob;
  const { kind, ranks, dies } = job;
  const device = kind === 'cpu' ? kind : 'auto';
  const tensor_parallel = { tp_size: ranks };
  const shared: inference.InferenceConfig = { device, tensor_parallel };
  const ofFault = job.fails ? misleadRank : dies !== null ? loseRank : null;
  const run = job.odd ? apart : job.unread ? afresh : ofFault;
  if (run) {
    console.log(JSON.stringify(await run(job, shared)));
    return;
  }
  const own = await initDistributed({ device, mesh: { tp: ranks } });
  const home = own.world.device;
  home.setDeterministic(true);
  computeOn(home);
  shared.device = home.name;
  const chosen = Object.entries(models).slice(ranks === 2 ? 0 : 1);
  for (const [name, make] of chosen) await alike(name, make, shared);
  const even = (): nn.models.CausalLM =>
    new Llama({ ...sizes, heads: 8, kvHeads: 4, channels: 64, hidden: 96 });
  const bits = (num_bits: 8 | 4, group_size: number | null) => ({
    quant: { weight: { num_bits, quantized_initialization: { group_size } } },
  });
  await alike('int8 by rows', models['Llama of 6 and 3 heads'] as () => nn.models.CausalLM, {
    ...shared,
    dtype: 'int8',
  });
  await alike('int4 in groups of 8', even, { ...shared, ...bits(4, 8) });
  await alike('packed projections in int8', packedPhi, { ...shared, dtype: 'int8' });
  await alike('packed projections in int4', packedPhi, { ...shared, ...bits(4, 8) });
  await alike('GPT-2 in int8', () => new GPT2({ ...sizes, heads: 4, channels: 32 }), {
    ...shared,
    ...bits(8, null),
  });
  const speculative = { num_speculative_tokens: 3, prompt_lookup_min: 1 };
  await alike('with proposals', even, { ...shared, speculative });
  await expectRefusal(
    'a cut inside of a group',
    () => initInference(build(even), { ...shared, ...bits(4, 128) }),
    /DS_ARGUMENT.*model\.layers\.0\.self_attn\.o_proj: expected inputs cut between groups of 128, got a cut at input \d+ of 64/,
  );
  await alike('a shared expert in int8', models['Qwen2-MoE of 5 experts'] as never, {
    ...shared,
    ...bits(8, null),
  });
  await checkPacked(job, shared);
  await alike('experts alone', mixture, { device, moe: { ep_size: ranks } });
  await alike('experts alone, the rest in int4', mixture, {
    device,
    moe: { ep_size: ranks },
    ...bits(4, 8),
  });
  if (ranks === 2) {
    await folder(job, shared);
    await checkFollowing(shared);
    await checkSaved(job, shared);
    await checkTrained(job, shared);
  }
  await expectRefusal(
    'other ranks',
    () =>
      initInference(build(models['GPT-2 of 5 heads'] as () => nn.models.CausalLM), {
        tensor_parallel: { tp_size: 3 },
      }),
    /DS_CONFIG tensor_parallel.tp_size: expected \d, the ranks/,
  );
  await expectRefusal(
    'experts that there are not',
    () => initInference(build(models['Qwen3, tied'] as never), { device, moe: { ep_size: ranks } }),
    /DS_CONFIG moe.ep_size: expected 1 for a model without experts, as Qwen3 is/,
  );
  await expectRefusal(
    'two numbers of ranks',
    () => initInference(build(mixture), { ...shared, moe: { ep_size: ranks + 1 } }),
    /moe.ep_size.*1 or tensor_parallel.tp_size/,
  );
  await own.destroy();
  console.log(JSON.stringify({ failures: checks.failures, count: checks.count }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
