// One rank that compares sequence parallelism with whole samples: losses, counts, logits,
// gradients, dropout.
import { initDistributed, type ProcessGroup } from '../../lib/comm/index.js';
import { LossReport, nn, noGrad, parallel, scope, seed, Tensor } from '../../lib/index.js';
import type { DeviceKind } from '../../lib/runtime/device.js';
import { Checks, computeOn, tokens } from './checks.js';

/** The one argument, as JSON. */
export interface SequenceJob {
  kind: DeviceKind;
}

const { GPT2, Llama, Phi3, Qwen3 } = nn.models;
const checks = new Checks();

const TOKENS = 12;
const sizes = { vocabSize: 37, maxSeq: TOKENS, layers: 2 };
const gpt2 = { ...sizes, heads: 5, channels: 20, dropout: 0.2 };
const llama = { ...sizes, heads: 4, kvHeads: 2, channels: 16, hidden: 13, attentionDropout: 0.3 };
const qwen3 = { ...sizes, heads: 8, kvHeads: 4, headDim: 6, channels: 16, hidden: 12 };
const stretched = { type: 'dynamic', factor: 2, originalMaxSeq: 6 } as const;

const models: Record<string, () => nn.models.CausalLM> = {
  'GPT-2': () => new GPT2(gpt2),
  'GPT-2, checkpointed': () => new GPT2({ ...gpt2, activationCheckpointing: true }),
  'GPT-2, selective': () => new GPT2({ ...gpt2, activationCheckpointing: 'selective' }),
  Llama: () => new Llama(llama),
  'Llama, checkpointed': () => new Llama({ ...llama, activationCheckpointing: true }),
  'Llama with a window and stretched angles': () =>
    new Llama({ ...llama, tied: true, ropeScaling: stretched }),
  'Phi-3, of whose heads a part is turned': () =>
    new Phi3({ ...qwen3, partialRotaryFactor: 0.7, attentionDropout: 0.3, residualDropout: 0.2 }),
  Qwen3: () => new Qwen3(qwen3),
};

interface Trained {
  loss: number;
  counts: number[];
}

/** Loss with dropout, and its gradients. */
function trainOnce(model: nn.models.CausalLM, inputs: nn.models.CausalInputs): Trained {
  seed(42);
  const [x, y] = [tokens([3, TOKENS], 37), tokens([3, TOKENS], 37, 4)];
  // On the second of two ranks, all targets of the last sample are ignored.
  y.narrow(1, 4, 2).fill_(-100);
  y.narrow(0, 2, 1).narrow(1, 6, 6).fill_(-100);
  const report = new LossReport(x.device);
  const loss = model.call(x, y, { ...inputs, loss: { report, labelSmoothing: 0.1 } }) as Tensor;
  loss.backward();
  const { counted, correct } = report.read();
  report.dispose();
  return { loss: loss.item(), counts: [counted, correct] };
}

function documents(): Tensor {
  const rows = [
    [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
    new Array(12).fill(0),
    [0, 0, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1],
  ];
  return Tensor.from(Int32Array.from(rows.flat()), {
    shape: [3, TOKENS],
    device: tokens([1], 2).device,
  });
}

/** Compares gradients of whole samples with the sum over the ranks. */
function compareSums(
  group: ProcessGroup,
  name: string,
  fullModel: nn.Module,
  part: nn.Module,
): void {
  const expected = new Map(fullModel.namedParameters());
  for (const [path, { grad }] of part.namedParameters()) {
    const expectedTensor = expected.get(path)?.grad;
    if (!grad || !expectedTensor) {
      checks.failures.push(`${name}: ${path} without a gradient`);
      continue;
    }
    const sum = grad.clone();
    group.allReduce(sum).wait();
    checks.near(`${name} gradient of ${path}`, sum.toArray(), expectedTensor.toArray());
  }
}

function compare(group: ProcessGroup, name: string, make: () => nn.models.CausalLM): void {
  const makeSeeded = (): nn.models.CausalLM => {
    seed(7);
    return make().to(group.device);
  };
  const [whole, part] = [makeSeeded(), makeSeeded()];
  part.shareSequence(new parallel.SequenceRanks(group));
  const cases: [string, nn.models.CausalInputs][] = [['', {}]];
  if (!name.includes('stretched')) {
    cases.push([', documents', { documents: documents() }]);
    const positions = tokens([3, TOKENS], TOKENS);
    cases.push([', positions', { positions }]);
  }
  for (const [more, inputs] of cases) {
    for (const model of [whole, part]) model.zeroGrad();
    const [wanted, got] = [trainOnce(whole, inputs), trainOnce(part, inputs)];
    checks.near(`${name}${more} loss`, [got.loss], [wanted.loss]);
    checks.same(`${name}${more} counts`, got.counts, wanted.counts);
    compareSums(group, name + more, whole, part);
  }
  ownLoss(group, name, whole, part);
  apart(name, whole, part);
}

/** A custom loss over all logits, on every rank. */
function ownLoss(group: ProcessGroup, name: string, fullModel: nn.Module, part: nn.Module): void {
  const losses = [fullModel, part].map((model) => {
    model.zeroGrad();
    seed(5);
    const logits = model.call(tokens([2, TOKENS], 37, 3)) as Tensor;
    const loss = logits.square().mean();
    loss.backward();
    return loss.item();
  });
  checks.near(`${name} loss of logits`, losses.slice(1), losses.slice(0, 1));
  compareSums(group, `${name}, logits`, fullModel, part);
}

/** Uneven token counts, with and without gradients, and sampling, which needs no other rank. */
function apart(name: string, fullModel: nn.models.CausalLM, part: nn.models.CausalLM): void {
  const odd = tokens([1, 11], 37);
  checks.throws(`${name}, odd tokens`, () => part.call(odd, odd), 'DS_SHAPE', 'a multiple of');
  for (const model of [fullModel, part]) model.eval();
  for (const length of [11, TOKENS]) {
    const x = tokens([1, length], 37);
    const [wanted, got] = noGrad(() => [fullModel, part].map((model) => model.call(x) as Tensor));
    checks.near(
      `${name}, ${length} tokens`,
      got?.toArray().flat(2) as number[],
      wanted?.toArray().flat(2) as number[],
    );
  }
  const options = { maxNewTokens: 5, temperature: 0, seed: 1 };
  checks.same(
    `${name} text`,
    part.generate([3, 1, 4], options),
    fullModel.generate([3, 1, 4], options),
  );
}

/** Sparse block layouts that differ per head; rank 1's tokens begin inside a block. */
function sparse(group: ProcessGroup): void {
  const long = { maxSeq: 72, vocabSize: 37, layers: 2 };
  const wide = { attentionDropout: 0.2, initializerRange: 0.4 };
  const makers: Record<string, () => nn.models.CausalLM> = {
    'GPT-2, sparse': () => new GPT2({ ...long, heads: 5, channels: 20 }),
    'Llama, sparse': () =>
      new Llama({ ...long, heads: 4, kvHeads: 2, channels: 16, hidden: 13, ...wide }),
  };
  for (const [name, make] of Object.entries(makers)) {
    const x = tokens([2, 72], 37);
    const [dense, whole, part] = [0, 1, 2].map((which) => {
      seed(7);
      const model = make().to(group.device);
      if (which > 0) nn.sparsify(model, byHead);
      if (which === 2) model.shareSequence(new parallel.SequenceRanks(group));
      return model;
    }) as [nn.models.CausalLM, nn.models.CausalLM, nn.models.CausalLM];
    const [other, wanted, got] = [dense, whole, part].map((model) => {
      seed(42);
      const loss = model.call(x, x) as Tensor;
      loss.backward();
      return loss.item();
    }) as [number, number, number];
    checks.near(`${name} loss`, [got], [wanted]);
    checks.same(`${name} is not dense`, [Number(Math.abs(other - wanted) > 1e-4)], [1]);
    compareSums(group, name, whole, part);
  }
}

const byHead: nn.SparsityOptions = {
  mode: 'fixed',
  attention: 'unidirectional',
  numLocalBlocks: 2,
  maxTokens: 72,
  differentLayoutPerHead: true,
  numDifferentGlobalPatterns: 2,
};

/** Attention options that do not support split samples throw. */
function refusals(group: ProcessGroup): void {
  const few = new GPT2({ ...sizes, heads: 1, channels: 8 });
  const ranks = new parallel.SequenceRanks(group);
  checks.throws(
    'one head',
    () => few.shareSequence(ranks),
    'DS_ARGUMENT',
    'sequence_parallel_size',
    'heads',
  );
  const samples = tokens([2, TOKENS], 37);
  const part = ranks.partOf(few, samples) as parallel.SequencePart;
  checks.same(
    'own tokens',
    part.of(samples).toArray().flat() as number[],
    samples.narrow(1, part.share.first, part.share.count).contiguous().toArray().flat() as number[],
  );
  part.run(() => {
    const attend = new nn.MultiheadAttention(8, 4, { batchFirst: true }).to(group.device);
    const x = Tensor.from(new Float32Array(2 * part.share.count * 8), {
      shape: [2, part.share.count, 8],
      device: group.device,
    });
    checks.throws(
      'weights',
      () => attend.call(x, x, x, { needWeights: true }),
      'DS_ARGUMENT',
      'needWeights',
    );
    const other = Tensor.from(new Float32Array(2 * 5 * 8), {
      shape: [2, 5, 8],
      device: group.device,
    });
    checks.throws(
      'another text',
      () => attend.call(x, other, other),
      'DS_SHAPE',
      'sequence parallelism',
    );
  });
}

async function main(): Promise<void> {
  const { kind } = JSON.parse(process.argv[2] as string) as SequenceJob;
  const job = await initDistributed(kind === 'cpu' ? { device: kind } : {});
  job.world.device.setDeterministic(true);
  computeOn(job.world.device);
  for (const [name, make] of Object.entries(models)) scope(() => compare(job.world, name, make));
  scope(() => sparse(job.world));
  scope(() => refusals(job.world));
  await job.destroy();
  console.log(JSON.stringify({ failures: checks.failures, count: checks.count }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
