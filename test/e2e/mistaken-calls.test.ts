// Tests that every function and class of the package throws a DsError for wrong arguments from
// plain JavaScript, never a TypeError from inside.
import * as ds from '../../lib/index.js';
import { surfaceOf } from '../docs/reference.js';

/**
 * Functions for authors of layers, ops, optimizers and schedules, where checks would slow down
 * loops, and views of existing values. TypeScript's types check their arguments.
 */
const FOR_AUTHORS = new Set([
  ...[
    'beforeBackward',
    'claim',
    'deferGradients',
    'record',
    'replayRandom',
    'segmentsOf',
    'within',
  ],
  ...['recomputable', 'recomputed', 'sharingSamples', 'sharingTokens'],
  ...['addConfigArguments', 'monitor.progressLine'],
  ...['comm.jointly', 'comm.jointlyAsync', 'optim.perBlock'],
  ...['nn.models.gpt2ActivationBytes'],
  ...['nn.models.gpt2HuggingFaceNames', 'parallel.vocabularyCrossEntropy', 'pipe.drawSchedule'],
  ...['pipe.lower', 'pipe.simulate', 'profiler.formatProfile', 'profiler.printProfile'],
  ...['profiler.writeTrace', 'combineRows'],
]);

/** Classes that functions of the package, or such authors, construct. */
const MADE_ELSEWHERE = new Set([
  ...['BlockLayout', 'DsError', 'InferenceEngine', 'InferenceServer', 'data.TokenFileDataset'],
  ...['comm.CompressedExchange', 'comm.Distributed', 'comm.JointCall', 'comm.MeshShape'],
  ...['nn.Fp8Linear', 'nn.PackedLinear', 'nn.QuantizedLinear', 'nn.models.GPT2Block'],
  ...['nn.models.RotaryBlock'],
  ...['nn.models.EncoderModel', 'text.LabelledDataset', 'text.PairDataset'],
  ...['Rollouts', 'text.PromptDataset', 'text.UnpairedDataset'],
  ...['nn.models.RotaryLM', 'optim.ScheduleSet', 'parallel.VocabularyEmbedding'],
  ...['parallel.VocabularyHead', 'peft.DoraEmbedding', 'peft.DoraLinear', 'peft.LoraEmbedding'],
  ...['peft.LoraLayer', 'peft.LoraLinear', 'peft.NF4Linear', 'text.TextDataset'],
  ...['peft.ExpertFactors', 'peft.LoraExperts', 'peft.NF4Experts', 'peft.NF4Matrices'],
  ...['text.Tokenizer'],
]);

/** Functions without parameters; they ignore arguments. */
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
  'hub.models',
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

/** Functions that do not check the mistakes below. TypeScript's types check their arguments. */
const UNCHECKED = [
  'FunctionContext',
  'DeferredGradients',
  'TrainingMethod',
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
  'nn.models.TaskModel',
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
  'passResult',
  'tensorsIn',
  'text.DecodeStream',
  'text.TextStream',
  'trainerOf',
  'zero.safeGetFullFp32Param',
  'zero.safeGetFullGrad',
  'zero.safeGetFullOptimizerState',
];

const TAKES_ANY = new Set([...WITHOUT_ARGUMENTS, ...UNCHECKED]);

type Call = (...items: readonly unknown[]) => unknown;

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

/** The error of a call, or null if the call succeeds. */
async function errorOf(path: string, items: readonly unknown[]): Promise<Error | null> {
  try {
    const called = at(path) as Call;
    if (isClass(called)) Reflect.construct(called, items);
    else await called(...items);
    return null;
  } catch (error) {
    return error as Error;
  }
}

/** Without arguments, these calls wait for ranks, or listen. */
const RUNS = new Set(['initDistributed', 'comm.initDistributed', 'comm.joinLaunched', 'serve']);

test('the lists name existing functions and classes', () => {
  expect(functions.length).toBeGreaterThan(150);
  expect(classes.length).toBeGreaterThan(80);
  for (const path of MADE_ELSEWHERE) expect(classes).toContain(path);
  for (const path of [...FOR_AUTHORS, ...RUNS]) expect(functions).toContain(path);
  for (const path of TAKES_ANY) expect(callable).toContain(path);
});

const spared = new Set([...FOR_AUTHORS, ...RUNS, ...MADE_ELSEWHERE]);

test.each([...functions, ...classes].filter((path) => !spared.has(path)))(
  '%s refuses wrong arguments with a DsError',
  async (path) => {
    let refused = 0;
    for (const items of MISTAKES) {
      const error = await errorOf(path, items);
      if (error) ++refused;
      if (error && !(error instanceof ds.DsError))
        throw new Error(`${path}(${JSON.stringify(items).slice(1, -1)})`, { cause: error });
    }
    // Fails if no call was refused, because then the test has checked nothing.
    expect([path, refused > 0]).toEqual([path, !TAKES_ANY.has(path)]);
  },
);
