// Where the stages of a model begin, by what the configuration says of its layers' shares.
import { initialize, nn, PipelineModule } from '../../lib/index.js';

const SIZES = { vocabSize: 512, maxSeq: 8, layers: 8, heads: 2, channels: 16 };

async function startsOf(model: nn.Module, partition?: string): Promise<readonly number[]> {
  const { engine } = await initialize({
    model,
    device: 'cpu',
    config: {
      train_micro_batch_size_per_gpu: 1,
      optimizer: { type: 'SGD', params: { lr: 1 } },
      pipeline: { stages: 1, schedule: 'interleaved', stages_per_rank: 2, ...{ partition } },
    },
  });
  const { starts } = (engine as unknown as { pipe: { pipeline: { starts: number[] } } }).pipe
    .pipeline;
  engine.destroy();
  return starts;
}

test('the head of a language model counts for what its product takes', async () => {
  // A block multiplies with 12 x 16 x 16 elements, the head with 512 x 16: as 2.7 blocks.
  const gpt2 = (): nn.Module => new nn.models.GPT2(SIZES);
  expect(await startsOf(gpt2())).toEqual([0, 6, 11]);
  expect(await startsOf(gpt2(), 'flops')).toEqual([0, 6, 11]);
  expect(await startsOf(gpt2(), 'parameters')).toEqual([0, 5, 11]);
});

test('a list of layers is shared out by its own method', async () => {
  const layers = [new nn.Linear(8, 64), new nn.Linear(64, 8), new nn.Linear(8, 8)];
  const made = (): nn.Module => new PipelineModule({ layers, lossFn: (x) => x.sum() });
  expect(await startsOf(made())).toEqual([0, 1, 3]);
});
