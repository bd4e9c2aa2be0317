// Trains a custom model in TypeScript: an encoder with a padding mask and tied embeddings, which
// learns to repeat the first token of each sequence.
// Run: node examples/own-model.ts
// Shows parameter groups, validation, saving the best model, and resuming.
import { join } from 'node:path';
import * as ds from '@ds/native';

const { nn, noGrad, scope } = ds;
const [PAD, MASK, VOCABULARY, LENGTH, CHANNELS, HEADS, EPOCHS] = [0, 1, 16, 12, 32, 4, 4];

const usage = `node examples/own-model.ts [folder]    (Node 22.18 or newer; else compile to own-model.js)
ds --num_procs 2 own-model.js [folder]
  folder  checkpoints are written there, and training resumes from it (default own-encoder)`;

/** Attention to every token of the same sequence, without padding. */
class Attention extends nn.Module {
  readonly qkv = new nn.Linear(CHANNELS, 3 * CHANNELS);
  readonly out = new nn.Linear(CHANNELS, CHANNELS);

  /** x [B, T, C]; isToken [B, 1, 1, T] is false for padding. */
  override forward(x: ds.Tensor, isToken: ds.Tensor): ds.Tensor {
    const heads = this.qkv.call(x).reshape([-1, LENGTH, 3, HEADS, CHANNELS / HEADS]);
    const projection = (i: number): ds.Tensor => heads.select(2, i).transpose(1, 2); // [B, H, T, D]
    const scores = projection(0)
      .matmul(projection(1).transpose(2, 3))
      .mul(1 / Math.sqrt(CHANNELS / HEADS));
    const weights = ds.where(isToken, scores, -1e9).softmax(); // [B, H, T, T]
    return this.out.call(
      weights.matmul(projection(2)).transpose(1, 2).reshape([-1, LENGTH, CHANNELS]),
    );
  }
}

class Block extends nn.Module {
  readonly norm1 = new nn.LayerNorm(CHANNELS);
  readonly attention = new Attention();
  readonly norm2 = new nn.LayerNorm(CHANNELS);
  readonly mlp = new nn.Sequential(new nn.LinearGelu(CHANNELS, 128), new nn.Linear(128, CHANNELS));

  override forward(x: ds.Tensor, isToken: ds.Tensor): ds.Tensor {
    const attended = x.add(this.attention.call(this.norm1.call(x), isToken));
    return attended.add(this.mlp.call(this.norm2.call(attended)));
  }
}

class Encoder extends nn.Module {
  readonly tokens = new nn.Embedding(VOCABULARY, CHANNELS, nn.init.normal(0.1));
  readonly positions = new nn.Parameter([LENGTH, CHANNELS], nn.init.normal(0.1));
  readonly blocks = [new Block(), new Block()]; // ZeRO moves each element as one unit.
  readonly norm = new nn.LayerNorm(CHANNELS);

  /** tokens and targets [B, T] i32; targets of tokens without a loss are -100. */
  override forward(tokens: ds.Tensor, targets: ds.Tensor): ds.Tensor {
    const isToken = tokens.ne(PAD).reshape([-1, 1, 1, LENGTH]);
    let x = this.tokens.call(tokens).add(this.positions);
    for (const block of this.blocks) x = block.call(x, isToken);
    // The head is tied: it uses the weight of the embedding.
    const logits = ds.linear(this.norm.call(x), this.tokens.weight, null);
    return ds.crossEntropy(logits, targets);
  }
}

/** Returns a dataset of computed sequences; the masked token repeats the first token. */
const sequenceDataset = (length: number, first: number) => ({
  length,
  get(index: number): { tokens: Int32Array; targets: Int32Array } {
    const noise = (i: number): number => Math.sin((first + index) * 12.9898 + i * 78.233) * 43758.5;
    const random = (i: number, below: number): number => Math.abs(Math.floor(noise(i))) % below;
    const used = 4 + random(-1, LENGTH - 3);
    const tokens = new Int32Array(LENGTH).fill(PAD);
    for (let i = 0; i < used; ++i) tokens[i] = 2 + random(i, VOCABULARY - 2);
    const targets = new Int32Array(LENGTH).fill(-100);
    const masked = 1 + random(-2, used - 1);
    targets[masked] = tokens[0] as number;
    tokens[masked] = MASK;
    return { tokens, targets };
  },
});

async function main(): Promise<void> {
  if (process.argv.some((word) => word === '--help' || word === '-h')) return console.log(usage);
  const { rank, worldSize } = await ds.initDistributed({ device: 'auto' });
  const printOnRank0 = (text: string): void => void (rank === 0 && console.log(text));
  ds.seed(1); // The same initial values in every run; ranks start with rank 0's.
  const model = new Encoder();
  const matrices = model.parameters().filter(({ ndim }) => ndim > 1);
  const vectors = model.parameters().filter(({ ndim }) => ndim <= 1);
  const { engine, trainLoader } = await ds.initialize({
    model,
    modelParameters: [{ params: matrices }, { params: vectors, weightDecay: 0 }],
    trainingData: sequenceDataset(1024, 0),
    config: {
      train_batch_size: 32,
      optimizer: { type: 'AdamW', params: { lr: 5e-3, weight_decay: 0.01 } },
      zero_optimization: { stage: worldSize > 1 ? 3 : 0 },
    },
  });
  const loader = new ds.data.DataLoader(sequenceDataset(128, 5000), {
    batchSize: 32,
    device: engine.device,
  });
  /** Returns the mean loss of the validation data, without gradients; equal on every rank. */
  const validate = async (): Promise<number> => {
    let sum = 0;
    engine.eval();
    for await (const { tokens, targets } of loader) {
      sum += noGrad(() => scope(() => engine.forward(tokens, targets).item()));
      for (const tensor of [tokens, targets]) tensor.dispose();
    }
    engine.train();
    return sum / loader.length;
  };
  const folder = process.argv.slice(2).find((word) => !word.startsWith('--')) ?? 'own-encoder';
  const lastFolder = join(folder, 'last');
  const bestFolder = join(folder, 'best');
  let lowestLoss = Number.POSITIVE_INFINITY;
  if (await ds.findLatest(lastFolder)) {
    lowestLoss = Number((await engine.loadCheckpoint(lastFolder)).clientState.lowest);
    printOnRank0(`resumed after step ${engine.globalSteps}`);
  }
  while (trainLoader.epoch < EPOCHS && !engine.stopRequested) {
    for await (const { tokens, targets } of trainLoader) {
      engine.backward(engine.forward(tokens, targets));
      engine.step();
      for (const tensor of [tokens, targets]) tensor.dispose();
      if (engine.stopRequested) break; // Ctrl-C or SIGTERM.
    }
    const loss = await validate();
    printOnRank0(`epoch ${trainLoader.epoch}  validation loss ${loss.toFixed(4)}`);
    if (loss < lowestLoss) await engine.saveCheckpoint(bestFolder, { tag: 'best' });
    lowestLoss = Math.min(lowestLoss, loss);
    await engine.saveCheckpoint(lastFolder, { clientState: { lowestLoss }, keepLast: 2 });
  }
  await engine.loadCheckpoint(bestFolder, { loadModuleOnly: true });
  printOnRank0(`best validation loss ${(await validate()).toFixed(4)}`);
  engine.destroy();
  await ds.comm.distributed()?.destroy();
}

void main();
