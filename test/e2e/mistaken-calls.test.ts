// What a plain JavaScript program may call by mistake: every function and class of the package is
// given what it cannot take, and answers with a DsError that says so, never with a TypeError of its
// insides.
import * as ds from '../../lib/index.js';
import { surfaceOf } from '../docs/reference.js';

/**
 * Functions for those who write layers, ops, optimizers and schedules, in whose loops a check would
 * be in the way, and views of what others return: TypeScript's types hold them.
 */
const FOR_AUTHORS = new Set([
  ...['beforeBackward', 'claim', 'leavingLate', 'record', 'replayRandom', 'segmentsOf', 'within'],
  ...['recomputable', 'recomputed', 'sharingSamples', 'sharingTokens'],
  ...['addConfigArguments', 'monitor.progressLine'],
  ...['comm.jointly', 'comm.jointlyInTurns', 'optim.perBlock'],
  ...['nn.models.gpt2ActivationBytes'],
  ...['nn.models.gpt2HuggingFaceNames', 'parallel.vocabularyCrossEntropy', 'pipe.drawSchedule'],
  ...['pipe.lower', 'pipe.simulate', 'profiler.formatProfile', 'profiler.printProfile'],
  ...['profiler.writeTrace', 'combineRows'],
]);

/** Classes whose objects a function of the package makes, or an author of the like. */
const MADE_ELSEWHERE = new Set([
  ...['BlockLayout', 'DsError', 'InferenceEngine', 'InferenceServer', 'data.TokenFileDataset'],
  ...['comm.CompressedExchange', 'comm.Distributed', 'comm.JointCall', 'comm.MeshShape'],
  ...['nn.PackedLinear', 'nn.QuantizedLinear', 'nn.models.GPT2Block', 'nn.models.RotaryBlock'],
  ...['nn.models.RotaryLM', 'optim.ScheduleSet', 'parallel.VocabularyEmbedding'],
  ...['parallel.VocabularyHead', 'peft.DoraEmbedding', 'peft.DoraLinear', 'peft.LoraEmbedding'],
  ...['peft.LoraLayer', 'peft.LoraLinear', 'peft.NF4Linear', 'text.TextDataset'],
  ...['text.Tokenizer'],
]);

/** These take no arguments, and ignore what they are given. */
const WITHOUT_ARGUMENTS = [
  'Scope',
  'checkpointing.isConfigured',
  'checkpointing.reset',
  'checkpointing.times',
  'comm.distributed',
  'countEmptyMeans',
  'cpu',
  'currentScope',
  'defaultInferenceConfig',
  'getRandomState',
  'isGradEnabled',
  'liveTensors',
  'nextRandom',
  'nn.Flatten',
  'nn.GELU',
  'nn.Identity',
  'nn.Module',
  'nn.ReLU',
  'nn.SiLU',
  'nn.Sigmoid',
  'nn.Tanh',
  'probeGpus',
  'randomPoint',
  'threads',
];

/** These check nothing of the mistakes below when they are called: TypeScript's types hold them. */
const UNCHECKED = [
  'FunctionContext',
  'LateGradients',
  'TrainingRun',
  'comm.ProcessGroup',
  'comm.Work',
  'comm.aloneOn',
  'comm.bandwidth',
  'comm.reportOf',
  'data.Sampler',
  'disclaim',
  'nn.ELU',
  'nn.LeakyReLU',
  'nn.Softplus',
  'nn.models.CausalLM',
  'optim.PureSchedule',
  'optim.StandaloneOptimizer',
  'optim.perElement',
  'optim.perParameter',
  'parallel.ChannelDropout',
  'parallel.SequencePart',
  'parallel.SequenceRanks',
  'parallel.groupOf',
  'pipe.interleaved',
  'profiler.Trace',
  'profiler.formatCount',
  'profiler.formatDuration',
  'setGradTarget',
  'sharedTokens',
  'surrenderResult',
  'tensorsIn',
  'text.DecodeStream',
  'text.TextStream',
  'trainerOf',
  'zero.safeGetFullFp32Param',
  'zero.safeGetFullGrad',
  'zero.safeGetFullOptimizerState',
];

const TAKES_ANY = new Set([...WITHOUT_ARGUMENTS, ...UNCHECKED]);

type Call = (...given: readonly unknown[]) => unknown;

const at = (path: string): unknown =>
  path.split('.').reduce<unknown>((owner, name) => (owner as Record<string, unknown>)?.[name], ds);

const isClass = (value: Call): boolean => /^class\b/.test(Function.prototype.toString.call(value));

const callable = surfaceOf('lib/index.ts')
  .filter(({ isMember, isInternal }) => !isMember && !isInternal)
  .map(({ path }) => path)
  .filter((path) => typeof at(path) === 'function');
const functions = callable.filter((path) => !isClass(at(path) as Call));
const classes = callable.filter((path) => isClass(at(path) as Call));

const MISTAKES: readonly (readonly unknown[])[] = [[], [{}], [null], ['x'], [3], [[]]];

/** The error of a call; null where it found nothing to complain about. */
async function errorOf(path: string, given: readonly unknown[]): Promise<Error | null> {
  try {
    const called = at(path) as Call;
    if (isClass(called)) Reflect.construct(called, given);
    else await called(...given);
    return null;
  } catch (error) {
    return error as Error;
  }
}

/** These wait for ranks, or listen, when they are called without arguments. */
const RUNS = new Set(['initDistributed', 'comm.initDistributed', 'comm.joinLaunched', 'serve']);

test('there are functions and classes to call', () => {
  expect(functions.length).toBeGreaterThan(150);
  expect(classes.length).toBeGreaterThan(80);
  for (const path of MADE_ELSEWHERE) expect(classes).toContain(path);
  for (const path of [...FOR_AUTHORS, ...RUNS]) expect(functions).toContain(path);
  for (const path of TAKES_ANY) expect(callable).toContain(path);
});

const spared = new Set([...FOR_AUTHORS, ...RUNS, ...MADE_ELSEWHERE]);

test.each([...functions, ...classes].filter((path) => !spared.has(path)))(
  '%s says what it cannot take',
  async (path) => {
    let refused = 0;
    for (const given of MISTAKES) {
      const error = await errorOf(path, given);
      if (error) ++refused;
      if (error && !(error instanceof ds.DsError))
        throw new Error(`${path}(${JSON.stringify(given).slice(1, -1)})`, { cause: error });
    }
    // With nothing refused the test has seen nothing.
    expect([path, refused > 0]).toEqual([path, !TAKES_ANY.has(path)]);
  },
);
