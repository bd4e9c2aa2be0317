// initInference(): builds an inference engine from a model or its folder.
import { distributed, jointlyAsync } from '../comm/index.js';
import { DsError } from '../errors.js';
import { findOrPullFolder } from '../hub/local-folder.js';
import { CausalLM, fromConfig } from '../models/index.js';
import { quantizeModel } from '../models/quantize-model.js';
import { replaceByMxfp4 } from '../models/quantized/mxfp4.js';
import { joinAll } from '../nn/joined-linears.js';
import { requireDense } from '../nn/sparse-attention.js';
import { isStreamed } from '../nn/streamed.js';
import { groupOf, type TensorPlan } from '../parallel/index.js';
import { parallelizeForInference } from '../parallel/parallelize.js';
import { hasParts, quantizeParts } from '../parallel/quantized-layers.js';
import { device as findDevice } from '../runtime/device.js';
import { argumentError, valueError } from '../runtime/input-errors.js';
import { namesOf, readOptions } from '../runtime/options.js';
import { requireNoSurplus, requireType } from '../runtime/require-type.js';
import { trainerOf } from '../tensor/index.js';
import { allOrNothing } from '../tensor/scope.js';
import { hasTokenizer } from '../text/gguf-tokenizer.js';
import { Tokenizer } from '../text/index.js';
import { Adapters } from './adapters/adapters.js';
import {
  type AdapterOptions,
  type AdapterSettings,
  readAdapterSettings,
} from './adapters/settings.js';
import {
  type InferenceConfig,
  type ResolvedInferenceConfig,
  readSharing,
  resolveInferenceConfig,
} from './config/index.js';
import { InferenceEngine } from './engine.js';
import { type OpenedModel, openModelFolder, readEndTokens } from './model-folder.js';
import type { CacheSizes } from './paged-cache.js';
import { loadParts } from './parts/load-parts.js';
import { readPartsList } from './parts/parts-list.js';
import { saveParts } from './parts/save-parts.js';
import { readQuantization } from './quantized-weights.js';
import { FollowerGenerator } from './ranks/follow.js';
import { LeaderGenerator } from './ranks/lead.js';
import { agree, type ModelRanks, openRanks, refuseRanks } from './ranks/open-ranks.js';
import { StepChannel } from './ranks/step-channel.js';
import { Sequence } from './sequence.js';
import {
  deriveLimits,
  dtypeOption,
  keyDtypeOption,
  readMaxTokens,
  readSpeculation,
  recordsSteps,
} from './settings.js';
import { openDraft } from './speculation/open-draft.js';
import type { OpenDraft } from './speculation/opened-draft.js';
import { StepLoop } from './step-loop.js';
import type { StepLoopParts } from './step-loop-parts.js';
import { StepRunner } from './step-runner.js';

/** Options of initInference() outside the configuration. */
export interface InitInferenceOptions extends AdapterOptions {
  /**
   * A tokenizer, its folder, or a name on the hub. Default: the tokenizer of the model folder. A
   * model object has no default tokenizer: its prompts must be tokens.
   */
  tokenizer?: Tokenizer | string;
  /** Branch, tag or commit of a model of the hub. Default: "main". */
  revision?: string;
}

/**
 * Builds an inference engine. `model` is a model object, a folder in the Hugging Face format, or a
 * name on the hub, which is downloaded once. The folder also provides the tokenizer. A folder with
 * an adapter loads the base model and merges the adapter.
 *
 * The model goes to evaluation mode, and to another device and dtype if the configuration sets
 * them. Its linear layers are quantized to 8 or 4 bits if `quant` is set. If initialize() owns the
 * model, its weights stay as they are, and the engine uses the current weights of training.
 *
 * On return, weights and cache are allocated and one forward has run. Rejects with DS_CONFIG for an
 * invalid configuration, DS_ARGUMENT for an invalid model and DS_LIMIT if the cache cannot hold one
 * sequence. It also rejects with the errors of models.fromPretrained() and
 * Tokenizer.fromPretrained(). Source: deepspeed.init_inference.
 */
export function initInference(
  model: CausalLM | string,
  config?: InferenceConfig | string | null,
  given?: InitInferenceOptions,
): Promise<InferenceEngine>;
export async function initInference(
  model: CausalLM | string,
  config: InferenceConfig | string | null = null,
  given: InitInferenceOptions = {},
  ...surplus: readonly unknown[]
): Promise<InferenceEngine> {
  requireNoSurplus('initInference', surplus);
  return open(model, config, given, false);
}

/**
 * @internal initInference() for a process that only serves this model. On a GPU, the cache may then
 * take all free memory, even without max_out_tokens in the configuration.
 */
export function initServing(
  folder: string,
  config: InferenceConfig,
  given: InitInferenceOptions,
): Promise<InferenceEngine> {
  return open(folder, config, given, true);
}

async function open(
  model: CausalLM | string,
  config: InferenceConfig | string | null,
  given: InitInferenceOptions,
  fillsDevice: boolean,
): Promise<InferenceEngine> {
  const { options, resolved } = await readTogether(config, given);
  const ranks = await openRanks(resolved);
  const groups = ranks ? [ranks.layers, ranks.host] : [];
  const created = () => createEngine(model, resolved, ranks, { ...options, fillsDevice });
  return jointlyAsync({ always: groups }, created);
}

/**
 * Reads the arguments. If this rank refuses them, it reports the error to the other ranks, so that
 * they do not wait.
 */
async function readTogether(
  config: InferenceConfig | string | null,
  given: InitInferenceOptions,
): Promise<{ options: InitInferenceOptions; resolved: ResolvedInferenceConfig }> {
  try {
    const readValues = readOptions('initInference', given, namesOf.InitInferenceOptions);
    const resolved = resolveInferenceConfig(config);
    for (const notice of resolved.notices) {
      process.emitWarning(notice, { type: 'DsWarning', code: 'DS_CONFIG' });
    }
    return { options: readValues, resolved };
  } catch (error) {
    await refuseRanks(readSharing(config), error);
    throw error;
  }
}

/**
 * @internal Builds an engine that samples with the weights of a training engine. Its logprobs are
 * at the sampling temperature. With `isWhole`, the caller keeps all weights on this rank while
 * requests are in progress. With `keepsAddresses`, the weights stay where they are until sleep(),
 * so steps can be recorded. Throws as initInference() does.
 */
export function initRollouts(
  model: CausalLM,
  config: InferenceConfig,
  tokenizer: Tokenizer | null,
  rollouts: RolloutWeights,
): Promise<InferenceEngine> {
  const resolved = resolveInferenceConfig(config);
  return build(model, resolved, null, { tokenizer, ownsModel: false, rollouts });
}

/** Builds the engine of this rank. */
async function createEngine(
  model: CausalLM | string,
  resolved: ResolvedInferenceConfig,
  ranks: ModelRanks | null,
  { fillsDevice, ...options }: InitInferenceOptions & { fillsDevice: boolean },
): Promise<InferenceEngine> {
  const adapters = readAdapterSettings('initInference', options);
  if (typeof model === 'string') {
    const read = await readModel(model, resolved, ranks, options);
    const tokenizer = await openTokenizer(options, read.folders);
    return build(read.model, resolved, ranks, {
      tokenizer,
      ownsModel: true,
      adapters,
      fillsDevice,
    });
  }
  if (!(model instanceof CausalLM)) {
    throw valueError(
      'initInference',
      'a causal language model (nn.models) or the folder of one',
      model,
    );
  }
  const tokenizer = await openTokenizer(options, []);
  return build(model, resolved, ranks, { tokenizer, ownsModel: false, adapters });
}

/** Loads the model of a folder or a name. With "checkpoint", reads only its configuration. */
async function readModel(
  source: string,
  resolved: ResolvedInferenceConfig,
  ranks: ModelRanks | null,
  { revision }: InitInferenceOptions,
): Promise<OpenedModel> {
  if (resolved.checkpoint) {
    const folder = await findOrPullFolder('initInference', source, { need: 'config', revision });
    return { model: fromConfig(folder), folders: [folder] };
  }
  const options = { ...Object.fromEntries(dtypeOption(resolved)), revision };
  return openModelFolder(source, options, (read) => {
    if (ranks) shard(read, ranks);
  });
}

/** Returns the tokenizer of the options, or else of the first folder that has one. */
async function openTokenizer(
  { tokenizer }: InitInferenceOptions,
  folders: readonly string[],
): Promise<Tokenizer | null> {
  if (tokenizer instanceof Tokenizer) return tokenizer;
  if (tokenizer !== undefined) {
    requireType('initInference tokenizer', tokenizer, 'string');
    const need = 'tokenizer';
    return Tokenizer.fromPretrained(await findOrPullFolder('initInference', tokenizer, { need }));
  }
  const folder = folders.find(hasTokenizer);
  return folder === undefined ? null : Tokenizer.fromPretrained(folder);
}

/**
 * Throws DS_CONFIG for an engine that cannot be batch-invariant: the order of an all-reduce depends
 * on the batch, and unmerged adapters use other kernels.
 */
function requireInvariant(ranks: ModelRanks | null, { adapters }: EngineSettings): void {
  if (!ranks && !adapters) return;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'initInference batch_invariant',
    expected: 'a model on one rank without the option adapters',
    got: ranks ? 'tensor_parallel or moe with several ranks' : 'adapters',
    hint: 'Omit batch_invariant, or serve the model on one rank, with a merged adapter.',
  });
}

/** Where a training engine's weights are while requests are in progress. */
interface RolloutWeights {
  isWhole: boolean;
  keepsAddresses: boolean;
}

/** Settings of an engine besides its model. */
interface EngineSettings {
  tokenizer: Tokenizer | null;
  ownsModel: boolean;
  /** Null or absent: no unmerged adapters. */
  adapters?: AdapterSettings | null;
  /** See initServing(). Default: false. */
  fillsDevice?: boolean;
  /** Set for rollouts; see initRollouts(). */
  rollouts?: RolloutWeights;
}

async function build(
  model: CausalLM,
  config: ResolvedInferenceConfig,
  ranks: ModelRanks | null,
  settings: EngineSettings,
): Promise<InferenceEngine> {
  requireDense('initInference', model);
  const maxTokens = readMaxTokens(config, model);
  const endTokens = readEndTokens(model, settings.tokenizer);
  const isTrained = model.parameters().some((parameter) => trainerOf(parameter) !== null);
  const isUnchanged = isTrained || isStreamed(model);
  if (isUnchanged && settings.adapters) {
    const got = 'one that an engine of initialize() trains or streams';
    throw argumentError('initInference adapters', 'a model for inference only', got);
  }
  if (isUnchanged) requireUnchanged(model, config, settings.rollouts?.isWhole ?? false);
  else await placeWeights(model, config, ranks, settings);
  if (!isTrained) model.eval();
  const { save_mp_checkpoint_path: saved } = config;
  if (saved !== null) await saveParts(model, saved, ranks);
  if (config.batch_invariant) requireInvariant(ranks, settings);
  else if (!isUnchanged && !settings.adapters) joinAll(model);
  const adapters = settings.adapters
    ? await Adapters.install('initInference', model, settings.adapters)
    : null;
  try {
    const built = { model, config, ranks, settings, adapters, isUnchanged, maxTokens, endTokens };
    return await finish(built);
  } catch (error) {
    adapters?.dispose();
    throw error;
  }
}

/** The result of build(). */
interface BuiltModel {
  model: CausalLM;
  config: ResolvedInferenceConfig;
  ranks: ModelRanks | null;
  settings: EngineSettings;
  adapters: Adapters | null;
  isUnchanged: boolean;
  maxTokens: number;
  endTokens: readonly number[];
}

/** Opens the draft model, if any, and creates the engine. */
async function finish(built: BuiltModel): Promise<InferenceEngine> {
  const { model, config, settings } = built;
  const draft = await openDraft(config, model, settings.tokenizer);
  try {
    return assemble(built, draft);
  } catch (error) {
    draft?.dispose();
    throw error;
  }
}

/** Allocates the cache of a prepared model and creates its engine. */
function assemble(built: BuiltModel, draft: OpenDraft | null): InferenceEngine {
  const { model, config, ranks, settings, adapters, isUnchanged, maxTokens, endTokens } = built;
  const { batch_invariant: isInvariant } = config;
  const blockSize = config.kv_cache.block_size;
  const keyDtype = keyDtypeOption(config);
  const isPlain = isInvariant || keyDtype.keyDtype !== undefined;
  const shape = isPlain ? model.cacheShape() : model.pagedShape();
  const sizes: CacheSizes = { ...shape, blockSize, isInvariant, ...keyDtype };
  tryForward(model, sizes, maxTokens);
  const { fillsDevice } = settings;
  const derived = deriveLimits(config, sizes, { maxTokens, draft: draft?.sizes, fillsDevice });
  const limits = ranks
    ? { ...derived, blocks: agree(ranks, model, config, derived.blocks) }
    : derived;
  const reach = Math.min(maxTokens, limits.blocks * limits.blockSize);
  const requests = {
    tokenizer: settings.tokenizer,
    vocabSize: model.vocabSize,
    maxTokens: reach,
    minNewTokens: config.min_out_tokens,
    endTokens,
    requireAdapter: adapters && ((op: string, name: string) => adapters.require(op, name)),
  };
  const hasMovingWeights = isUnchanged && !settings.rollouts?.keepsAddresses;
  const records = recordsSteps(config, sizes.device, ranks !== null || hasMovingWeights);
  const speculation = readSpeculation(config, sizes, draft?.costFor(model) ?? null);
  const hooks = draft?.hooksFor(limits.blocks) ?? null;
  const runnerSizes = {
    ...limits,
    reach,
    records,
    adapters,
    hooks,
    proposals: speculation?.max ?? 0,
  };
  const runner = allOrNothing(() => new StepRunner(model, sizes, runnerSizes));
  const drafting = draft && allOrNothing(() => draft.modelFor(runnerSizes, model.vocabSize));
  // Followers receive a step's tokens from rank 0, so rank 0 must wait for them on the host.
  const runsAhead = !ranks && (config.async_scheduling ?? sizes.device.kind !== 'cpu');
  const logprobs = { isScaled: settings.rollouts !== undefined, isInvariant };
  const others = { speculation, adapters, logprobs, draft: drafting };
  const isCacheBound = reach < maxTokens;
  const parts = { model, runner, limits, requests, runsAhead, isCacheBound, ...others };
  const shared = ranks ? sharedGenerator(parts, ranks) : { generator: new StepLoop(parts) };
  return new InferenceEngine({ ...parts, ...settings, adapters, ...shared });
}

/** Shards, loads, quantizes and moves the weights. */
async function placeWeights(
  model: CausalLM,
  config: ResolvedInferenceConfig,
  ranks: ModelRanks | null,
  { ownsModel }: EngineSettings,
): Promise<void> {
  for (const parameter of model.parameters()) parameter.requireWritable('initInference');
  const quantization = readQuantization(config);
  if (ranks && groupOf(model) !== ranks.layers) shard(model, ranks);
  if (config.checkpoint) {
    const list = await readPartsList(config.checkpoint, config.base_dir);
    const { rank = 0, size = 1 } = ranks?.host ?? {};
    const [dtype = null] = dtypeOption(config).map(([, item]) => item);
    await loadParts(model, list, { rank, ranks: size, dtype });
  }
  if (!ranks) replaceByMxfp4(model);
  if (quantization && hasParts(model)) quantizeParts(model, quantization);
  else if (quantization) quantizeModel(model, quantization);
  const deviceName = config.device ?? (ownsModel ? 'auto' : model.cacheShape().device);
  const dtypes = dtypeOption(config).map(([, dtype]) => dtype);
  model.to(ranks?.device ?? findDevice(deviceName), ...dtypes);
}

/**
 * Throws DS_CONFIG if the configuration would change the weights of an initialize() model. Throws
 * DS_ARGUMENT if ranks hold parts of the weights, because they would have to run all steps
 * together.
 */
function requireUnchanged(
  model: CausalLM,
  config: ResolvedInferenceConfig,
  isWhole: boolean,
): void {
  const { quant, checkpoint, save_mp_checkpoint_path, moe, tensor_parallel: tp } = config;
  const { dtype, device } = model.cacheShape();
  const requestedDevice = config.device === null ? device : findDevice(config.device);
  const unsupported = {
    dtype: dtypeOption(config)[0]?.[1] === dtype ? null : config.dtype,
    device: requestedDevice.name === device.name ? null : config.device,
    quant,
    checkpoint,
    save_mp_checkpoint_path,
    tensor_parallel: tp.tp_size > 1 ? tp : null,
    moe: moe.ep_size > 1 ? moe : null,
  };
  const refused = Object.entries(unsupported).find(([, value]) => value !== null);
  if (refused) {
    throw new DsError({
      code: 'DS_CONFIG',
      op: `initInference ${refused[0]}`,
      expected: `no value for a model of initialize(), which is in ${dtype} on ${device.name}`,
      got: JSON.stringify(refused[1]),
      hint: 'Set it in the configuration of initialize(), or call destroy() on that engine first.',
    });
  }
  const isSplit =
    groupOf(model) !== null || model.parameters().some((parameter) => parameter.missing !== null);
  const ranks = distributed()?.worldSize ?? 1;
  if (ranks === 1 || !(isSplit || (isStreamed(model) && !isWhole))) return;
  throw argumentError(
    'initInference',
    'a single process for a model that initialize() has sharded',
    `a job of ${ranks} ranks`,
    'Make the same engine.forward() or engine.module.generate() calls on all ranks, or generate in a single process.',
  );
}

/** Shards the layers, or only the experts, for this rank. */
function shard(model: CausalLM, { layers, expertsOnly }: ModelRanks): void {
  parallelizeForInference(model, layers, expertsOnly ? expertPlan(model) : null);
}

/** Returns the plan that distributes experts. Throws DS_CONFIG for a model without experts. */
function expertPlan(model: CausalLM): TensorPlan {
  const plan = model.expertPlan();
  if (plan) return plan;
  throw new DsError({
    code: 'DS_CONFIG',
    op: 'moe.ep_size',
    expected: `1 for a model without experts, as ${model.constructor.name} is`,
    got: 'a value above 1',
    hint: 'Use tensor_parallel.tp_size to shard the layers of any model.',
  });
}

/** Rank 0 schedules and samples; the other ranks compute the same steps. */
function sharedGenerator(parts: StepLoopParts, { layers, host, timeoutMs }: ModelRanks) {
  const channel = new StepChannel(host);
  const { runner } = parts;
  runner.together = { always: [layers] };
  if (host.rank > 0) {
    const follow = new FollowerGenerator(host.rank, channel, runner);
    return { generator: follow, role: follow };
  }
  const lead = new LeaderGenerator(
    channel,
    timeoutMs,
    (listener) => new StepLoop({ ...parts, listener }),
  );
  runner.announce = (batch) => lead.announce(batch);
  return { generator: lead, role: lead };
}

/**
 * Runs one token through the model. Weights allocate their memory before the cache takes the rest,
 * and a model that refuses `maxTokens` throws now.
 */
function tryForward(model: CausalLM, sizes: CacheSizes, maxTokens: number): void {
  const runnerSizes = { blocks: 1, tokens: 1, sequences: 1, reach: maxTokens, records: false };
  const runner = new StepRunner(model, sizes, runnerSizes);
  try {
    const sequence = new Sequence([0], 1);
    sequence.blocks = [0];
    runner.launch([{ sequence, first: 0, count: 1 }], (_scores, _sequences, tokens) => ({
      tokens,
      logprobs: null,
      top: null,
      requestedTop: [null],
    }));
    sizes.device.synchronize();
  } finally {
    runner.dispose();
  }
}
