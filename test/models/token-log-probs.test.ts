// Log-probabilities of tokens whose logits are computed in parts.
import {
  type DsConfig,
  type Engine,
  initialize,
  nn,
  scope,
  seed,
  Tensor,
} from '../../lib/index.js';
import { tokenLogProbs } from '../../lib/models/token-log-probs.js';

const VOCABULARY = 13;
const TARGETS = [3, -100, 7, 0, 12, 5, -100, 1];
/** tokenLogProbs() sizes its parts by the vocabulary: rows of one part by the claimed size. */
const SIZES = { 'one part': VOCABULARY, 'parts of two rows': 2 ** 26, 'parts of one row': 2 ** 27 };

interface PolicyOptions {
  entropies?: boolean;
  isFrozen?: boolean;
  isTied?: boolean;
}

/** A head after an embedding; its forward returns the mean log-probability of the targets. */
class Policy extends nn.Module {
  readonly table = new nn.Embedding(VOCABULARY, 8);
  private readonly entropies: boolean;
  readonly head: nn.Linear | null;

  constructor(
    private readonly claimed: number,
    { entropies = false, isFrozen = false, isTied = false }: PolicyOptions = {},
  ) {
    super();
    this.entropies = entropies;
    this.head = isTied ? null : new nn.Linear(8, VOCABULARY, { bias: false });
    if (isFrozen) this.table.weight.requireGrad(false);
  }

  override forward(tokens: Tensor, targets: Tensor): Tensor {
    return scope(() => {
      const x = this.table.call(tokens);
      const options = { ignored: -100, vocabSize: this.claimed, entropies: this.entropies };
      const found = tokenLogProbs(x, targets, (y) => this.logitsOf(y), options);
      return found.mean().neg();
    });
  }

  private logitsOf(x: Tensor): Tensor {
    return this.head ? this.head.call(x) : x.matmul(this.table.weight.transpose(0, 1));
  }
}

const tokens = (): Tensor => Tensor.from(Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8), { shape: [2, 4] });
const targets = (): Tensor => Tensor.from(Int32Array.from(TARGETS), { shape: [2, 4] });

function gradients(claimed: number, entropies: boolean): number[][] {
  seed(1);
  const policy = new Policy(claimed, { entropies });
  const loss = policy.call(tokens(), targets());
  loss.backward();
  const all = [...policy.parameters()].map(({ grad }) => grad?.toArray() ?? []);
  return [[loss.item()], ...all];
}

async function trainPolicy(
  claimed: number,
  stage: 0 | 1 | 2 | 3,
  options: PolicyOptions = {},
): Promise<number[]> {
  seed(1);
  const config: DsConfig = {
    train_micro_batch_size_per_gpu: 2,
    gradient_accumulation_steps: 2,
    zero_optimization: { stage },
    gradient_clipping: 0.05,
    optimizer: { type: 'SGD', params: { lr: 1 } },
  };
  const { engine } = await initialize({
    model: new Policy(claimed, options),
    device: 'cpu',
    config,
  });
  const losses: number[] = [];
  try {
    for (let micro = 0; micro < 6; ++micro) losses.push(once(engine as Engine));
  } finally {
    engine.destroy();
  }
  return losses;
}

const once = (engine: Engine): number =>
  scope(() => {
    const loss = engine.forward(tokens(), targets()) as Tensor;
    engine.backward(loss);
    engine.step();
    return loss.item();
  });

const close = (found: readonly number[], expected: readonly number[]): void => {
  expect(found).toHaveLength(expected.length);
  found.forEach((value, i) => {
    expect(value).toBeCloseTo(expected[i] ?? Number.NaN, 4);
  });
};

describe.each(Object.entries(SIZES).slice(1))('token log-probabilities in %s', (_, claimed) => {
  test.each([false, true])('have the gradients of one part (entropies: %s)', (entropies) => {
    const fullRows = gradients(VOCABULARY, entropies);
    gradients(claimed, entropies).forEach((values, i) => {
      close(values, fullRows[i] ?? []);
    });
  });

  test.each([0, 1, 2, 3] as const)('train as one part at stage %i', async (stage) => {
    close(await trainPolicy(claimed, stage), await trainPolicy(VOCABULARY, stage));
  });

  test.each([0, 2, 3] as const)('train a tied head at stage %i', async (stage) => {
    const tied = { isTied: true };
    close(await trainPolicy(claimed, stage, tied), await trainPolicy(VOCABULARY, stage, tied));
  });

  // The head's gradient is complete after the last part: its norm is that of all parts.
  test.each([0, 2, 3] as const)('train only the head at stage %i', async (stage) => {
    close(
      await trainPolicy(claimed, stage, { isFrozen: true }),
      await trainPolicy(VOCABULARY, stage, { isFrozen: true }),
    );
  });
});
