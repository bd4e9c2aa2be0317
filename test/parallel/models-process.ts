// One rank that compares split language models with whole ones: initial values, dropout, losses,
// gradients, sampled texts.
import { initDistributed, type ProcessGroup } from '../../lib/comm/index.js';
import { LossReport, nn, parallel, scope, seed, type Tensor } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import {
  Checks,
  compareGradients,
  compareOwners,
  compareWeights,
  computeOn,
  numbers,
  tokens,
} from './checks.js';

/** The one argument, as JSON. */
export interface ModelsJob {
  kind: DeviceKind;
  /** Folders in the format of Hugging Face: a GPT-2 and a Llama. */
  folders: readonly string[];
}

const { GPT2, Llama, Mixtral, Phi3, Qwen2Moe, Qwen3 } = nn.models;
const checks = new Checks();

const sizes = { vocabSize: 37, maxSeq: 12, layers: 2 };
const gpt2 = { ...sizes, heads: 5, channels: 20, dropout: 0.2 };
const llama = { ...sizes, heads: 4, kvHeads: 2, channels: 16, hidden: 13, attentionDropout: 0.3 };
const qwen3 = { ...sizes, heads: 8, kvHeads: 4, headDim: 6, channels: 16, hidden: 12 };

const models: Record<string, () => nn.models.CausalLM> = {
  'GPT-2': () => new GPT2(gpt2),
  'GPT-2, checkpointed': () => new GPT2({ ...gpt2, activationCheckpointing: true }),
  'GPT-2, selective': () => new GPT2({ ...gpt2, activationCheckpointing: 'selective' }),
  Llama: () => new Llama(llama),
  'Llama, checkpointed': () => new Llama({ ...llama, activationCheckpointing: true }),
  'Llama with biases, tied': () =>
    new Llama({ ...llama, tied: true, attentionBias: true, mlpBias: true }),
  Qwen3: () => new Qwen3(qwen3),
  'Phi-3, of whose heads a part is turned': () =>
    new Phi3({ ...qwen3, partialRotaryFactor: 0.7, residualDropout: 0.2, window: 5 }),
  'Phi-3, tied, checkpointed': () =>
    new Phi3({ ...qwen3, tied: true, attentionDropout: 0.3, activationCheckpointing: true }),
  'Mixtral with a loss of its routers, checkpointed': () =>
    new Mixtral({
      ...llama,
      moe: { experts: 5, perToken: 2 },
      routerAuxLossCoef: 0.5,
      activationCheckpointing: true,
    }),
  'Qwen2-MoE': () =>
    new Qwen2Moe({
      ...sizes,
      heads: 4,
      channels: 16,
      hidden: 12,
      routerAuxLossCoef: 0.1,
      moe: {
        experts: 4,
        perToken: 3,
        hidden: 6,
        sharedHidden: 9,
        normalize: false,
        denseLayers: [0],
      },
    }),
};

/** Loss with dropout, and its gradients. */
function trainOnce(model: nn.models.CausalLM, report: LossReport): Tensor {
  seed(42);
  const [x, y] = [tokens([3, 12], 37), tokens([3, 12], 37, 4)];
  y.narrow(1, 4, 2).fill_(-100);
  const loss = model.call(x, y, { loss: { report, labelSmoothing: 0.1 } }) as Tensor;
  loss.backward();
  return loss;
}

/** The loss of the model with split tokens too; its gradients equal the whole model's. */
function sequence(
  group: ProcessGroup,
  name: string,
  make: () => nn.models.CausalLM,
  fullModel: nn.models.CausalLM,
): number {
  seed(7);
  const options = { sequenceParallel: true };
  const part = parallel.parallelize(make(), group, null, options).to(group.device);
  const loss = trainOnce(part, new LossReport(group.device)).item();
  parallel.sumPartialGradients(part, group);
  compareGradients(checks, `${name}, tokens apart:`, fullModel, part);
  if (part instanceof GPT2) {
    const x = numbers([1, 12, 20]).requireGrad();
    const alone = () => part.transformer.h[1]?.call(x, null);
    checks.throws(`${name}, a block by itself`, alone, 'DS_ARGUMENT', 'in a pipeline');
  }
  const odd = tokens([1, 2 * group.size + 1], 37);
  checks.throws(`${name}, odd tokens`, () => part.call(odd, odd), 'DS_SHAPE', 'a multiple of');
  return loss;
}

function train(group: ProcessGroup, name: string, make: () => nn.models.CausalLM): void {
  seed(7);
  const fullModel = make().to(group.device);
  seed(7);
  const part = parallel.parallelize(make(), group).to(group.device);
  const [wanted, got] = [new LossReport(group.device), new LossReport(group.device)];
  compareWeights(checks, name, fullModel, part);
  compareOwners(checks, name, part, group);
  const expected = trainOnce(fullModel, wanted).item();
  const first = trainOnce(part, got).item();
  checks.near(`${name} loss`, [first], [expected]);
  const apart = sequence(group, name, make, fullModel);
  // Sums over more than two ranks have an order, which NCCL chooses per collective.
  const compared = group.device.kind === 'cpu' || group.size <= 2 ? 'same' : 'near';
  checks[compared](`${name} loss, tokens apart`, [apart], [first]);
  const countsOf = (report: LossReport): number[] => [report.read().counted, report.read().correct];
  checks.same(`${name} counts`, countsOf(got), countsOf(wanted));
  parallel.sumPartialGradients(part, group);
  compareGradients(checks, name, fullModel, part);
  part.eval();
  fullModel.eval();
  const prompt = [3, 1, 4];
  const options = { maxNewTokens: 7, temperature: 0, seed: 1 };
  checks.same(`${name} text`, part.generate(prompt, options), fullModel.generate(prompt, options));
}

/** Sparse block layouts that differ per head, in training and with a cache. */
function sparse(group: ProcessGroup): void {
  const long = { maxSeq: 72, vocabSize: 37, layers: 2 };
  const llama = { heads: 4, kvHeads: 2, channels: 16, hidden: 13, initializerRange: 0.4 };
  const makers: Record<string, () => nn.models.CausalLM> = {
    'GPT-2, sparse': () => new GPT2({ ...long, heads: 5, channels: 20 }),
    'Llama, sparse': () => new Llama({ ...long, ...llama }),
  };
  const options: nn.SparsityOptions = {
    mode: 'fixed',
    attention: 'unidirectional',
    numLocalBlocks: 2,
    maxTokens: 72,
    differentLayoutPerHead: true,
    numDifferentGlobalPatterns: 2,
  };
  for (const [name, make] of Object.entries(makers)) {
    seed(7);
    const fullModel = make().to(group.device);
    seed(7);
    const part = parallel.parallelize(make(), group).to(group.device);
    const x = tokens([2, 70], 37);
    const losses = [fullModel, part].map((model) => {
      nn.sparsify(model, options);
      const loss = model.call(x, x) as Tensor;
      loss.backward();
      return loss.item();
    });
    checks.near(`${name} loss`, losses.slice(1), losses.slice(0, 1));
    parallel.sumPartialGradients(part, group);
    compareGradients(checks, name, fullModel, part);
    const prompt = Array.from({ length: 40 }, (_, i) => (i * 11) % 37);
    const [wanted, got] = [fullModel, part].map((model) =>
      model.eval().generate(prompt, { maxNewTokens: 20, temperature: 0, seed: 1 }),
    );
    checks.same(`${name} text`, got as number[], wanted as number[]);
  }
}

/** A part of a packed projection cannot be on several ranks. */
function checkRefusals(group: ProcessGroup): void {
  const few = new Phi3({ ...qwen3, kvHeads: 1 });
  const cut = (): unknown => parallel.parallelize(few, group);
  checks.throws('one head of keys, packed', cut, 'DS_ARGUMENT', 'at most 1 ranks for packed');
}

/** Each rank loads its part of the files, which equals the part of the whole model. */
async function load(group: ProcessGroup, folder: string): Promise<void> {
  const fullModel = await nn.models.fromPretrained(folder);
  const part = parallel.parallelize(await nn.models.fromPretrained(folder), group);
  scope(() => {
    for (const [path, parameter] of part.namedParameters()) {
      checks.same(`${folder} ${path} stays in its file`, [Number(!!parameter.stored)], [1]);
    }
    compareWeights(checks, folder, fullModel, part);
  });
}

async function main(): Promise<void> {
  const { folders, kind } = JSON.parse(process.argv[2] as string) as ModelsJob;
  const job = await initDistributed(kind === 'cpu' ? { device: kind } : {});
  job.world.device.setDeterministic(true);
  computeOn(job.world.device);
  for (const [name, make] of Object.entries(models)) scope(() => train(job.world, name, make));
  scope(() => sparse(job.world));
  checkRefusals(job.world);
  for (const folder of folders) await load(job.world, folder);
  await job.destroy();
  console.log(JSON.stringify({ failures: checks.failures, count: checks.count }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
